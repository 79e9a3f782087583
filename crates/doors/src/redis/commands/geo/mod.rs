//! Places of members: a sorted set whose scores are the numbers of cells on the earth.

mod cells;
mod search;

pub(in crate::redis) use search::Search;

use engine::cache::structures::{Score, Sorted};

use self::cells::Place;
use super::args::{float, is};
use super::sorted::{AddOptions, add};
use crate::redis::command::{Command, Keys, ONE, Step, TWO, part, read, write};
use crate::redis::errors::{Done, Fail, SYNTAX, fixed};

pub(super) const COMMANDS: &[Command] = &[
    write("GEOADD", -5, ONE, geoadd, ("3.2.0", "Adds members at places, or moves them")),
    read("GEOPOS", -2, ONE, geopos, ("3.2.0", "Returns the longitudes and latitudes of members")),
    read("GEOHASH", -2, ONE, geohash, ("3.2.0", "Returns the geohashes of members")),
    read("GEODIST", -4, ONE, geodist, ("3.2.0", "Returns the distance between two members")),
    read("GEOSEARCH", -7, ONE, search::geosearch, ("6.2.0", "Returns the members within a circle or a rectangle")),
    write(
        "GEOSEARCHSTORE",
        -8,
        TWO,
        search::geosearchstore,
        ("6.2.0", "Stores the members within a circle or a rectangle"),
    ),
    write(
        "GEORADIUS",
        -6,
        Keys::FirstAndStored,
        search::georadius,
        ("3.2.0", "Returns or stores the members within a circle: the older form of GEOSEARCH"),
    ),
    read("GEORADIUS_RO", -6, ONE, search::georadius_ro, ("3.2.10", "Returns the members within a circle")),
    write(
        "GEORADIUSBYMEMBER",
        -5,
        Keys::FirstAndStored,
        search::georadiusbymember,
        ("3.2.0", "Returns or stores the members within a circle around a member: the older form of GEOSEARCH"),
    ),
    read(
        "GEORADIUSBYMEMBER_RO",
        -5,
        ONE,
        search::georadiusbymember_ro,
        ("3.2.10", "Returns the members within a circle around a member"),
    ),
];

const WRONG_UNIT: Fail = fixed("ERR unsupported unit provided. please use M, KM, FT, MI");

/// Returns the length of a unit in meters.
fn unit(arg: &[u8]) -> Done<f64> {
    match arg {
        unit if is(unit, "M") => Ok(1.0),
        unit if is(unit, "KM") => Ok(1000.0),
        unit if is(unit, "FT") => Ok(0.3048),
        unit if is(unit, "MI") => Ok(1609.34),
        _ => Err(WRONG_UNIT),
    }
}

fn place(longitude: &[u8], latitude: &[u8]) -> Done<Place> {
    let (longitude, latitude) = (float(longitude)?, float(latitude)?);
    let wrong = || Fail::new(format!("ERR invalid longitude,latitude pair {longitude:.6},{latitude:.6}"));
    Place::new(longitude, latitude).ok_or_else(wrong)
}

fn place_of(sorted: &Sorted, member: &[u8]) -> Option<Place> {
    sorted.score(member).map(|score| Place::of_score(score.get()))
}

fn geoadd(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let mut options = AddOptions::default();
    let mut at = 2;
    while let Some(word) = args.get(at) {
        match word {
            word if is(word, "NX") => options.is_new_only = true,
            word if is(word, "XX") => options.is_existing_only = true,
            word if is(word, "CH") => options.counts_changed = true,
            _ => break,
        }
        at += 1;
    }
    let (members, rest) = args[at..].as_chunks::<3>();
    if members.is_empty() || !rest.is_empty() || options.is_new_only && options.is_existing_only {
        return Err(SYNTAX);
    }
    let mut pairs = Vec::with_capacity(members.len());
    for [longitude, latitude, member] in members {
        pairs.push((place(longitude, latitude)?.score(), *member));
    }
    let added = add(step, args[1], options, &pairs)?;
    step.out.len(if options.counts_changed { added.changed } else { added.new });
    Ok(())
}

fn geopos(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let sorted = part::<Sorted>(step.db, args[1])?;
    step.out.array(args.len() - 2);
    for member in &args[2..] {
        match sorted.and_then(|sorted| place_of(sorted, member)) {
            Some(place) => write_place(step.out, place),
            None => step.out.null_array(),
        }
    }
    Ok(())
}

fn write_place(out: &mut crate::redis::writer::Writer, place: Place) {
    out.array(2);
    out.decimal(place.longitude);
    out.decimal(place.latitude);
}

fn geohash(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let sorted = part::<Sorted>(step.db, args[1])?;
    step.out.array(args.len() - 2);
    for member in &args[2..] {
        let hash = sorted.and_then(|sorted| place_of(sorted, member)).map(Place::geohash);
        step.out.maybe(hash.as_ref().map(|hash| &hash[..]));
    }
    Ok(())
}

fn geodist(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let unit = match args[4..] {
        [] => 1.0,
        [word] => unit(word)?,
        _ => return Err(SYNTAX),
    };
    let sorted = part::<Sorted>(step.db, args[1])?;
    match sorted.and_then(|sorted| Some((place_of(sorted, args[2])?, place_of(sorted, args[3])?))) {
        Some((from, to)) => write_distance(step.out, from.distance(to) / unit),
        None => step.out.null(),
    }
    Ok(())
}

fn write_distance(out: &mut crate::redis::writer::Writer, distance: f64) {
    out.bulk(format!("{distance:.4}").as_bytes());
}

/// Returns a score that is a number.
fn score(number: f64) -> Score {
    Score::new(number).unwrap_or_default()
}

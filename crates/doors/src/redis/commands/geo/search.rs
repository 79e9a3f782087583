//! Search for the members within a shape.
//!
//! The set is shared with the database until one of the two changes, so that a large search runs in slices, without
//! locks, over the members as they were at one moment.

use std::collections::BTreeMap;

use engine::cache::structures::{Bound, Score, Sorted, Structure};

use super::cells::{Place, Shape};
use super::{place, place_of, score, unit, write_distance, write_place};
use crate::redis::command::{Step, part};
use crate::redis::commands::args::{is, parse_float, parse_int};
use crate::redis::commands::combine::take_room;
use crate::redis::commands::keys::store;
use crate::redis::commands::work::{Pace, Sliced, at_once};
use crate::redis::errors::{Done, Fail, SYNTAX, fixed};
use crate::redis::writer::{ANSWER_BYTES_MAX, Writer};

const NO_MEMBER: Fail = fixed("ERR could not decode requested zset member");

/// Forms of the commands that search.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// `GEORADIUS` and `GEORADIUSBYMEMBER`, which may store what they find.
    Radius,
    RadiusReadOnly,
    Search,
    SearchStore,
}

impl Form {
    fn is_search(self) -> bool {
        matches!(self, Self::Search | Self::SearchStore)
    }
}

/// Order of the members that are found.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Order {
    /// As they are found, cell by cell.
    #[default]
    Any,
    Nearest,
    Farthest,
}

/// Options of a search, as they are parsed.
#[derive(Default)]
struct Options<'a> {
    /// Center; a member that cannot be looked up, because the key does not exist, has none.
    center: Option<Place>,
    is_from_member: bool,
    is_from_place: bool,
    shape: Option<(Shape, f64)>,
    has_distances: bool,
    has_scores: bool,
    has_places: bool,
    order: Order,
    /// Maximum number of members.
    count: Option<usize>,
    /// `true` if the search ends with the first members that it finds.
    is_any: bool,
    to: Option<&'a [u8]>,
    stores_distances: bool,
}

fn number(arg: &[u8], what: &'static str) -> Done<f64> {
    parse_float(arg).ok_or(fixed(what))
}

/// Parses a radius and its unit.
fn circle(args: [&[u8]; 2]) -> Done<(Shape, f64)> {
    let radius = number(args[0], "ERR need numeric radius")?;
    if radius < 0.0 {
        return Err(fixed("ERR radius cannot be negative"));
    }
    let unit = unit(args[1])?;
    Ok((Shape::Circle { radius: radius * unit }, unit))
}

/// Parses a width, a height and their unit.
fn rectangle(args: [&[u8]; 3]) -> Done<(Shape, f64)> {
    let width = number(args[0], "ERR need numeric width")?;
    let height = number(args[1], "ERR need numeric height")?;
    if width < 0.0 || height < 0.0 {
        return Err(fixed("ERR height or width cannot be negative"));
    }
    let unit = unit(args[2])?;
    Ok((Shape::Rectangle { width: width * unit, height: height * unit }, unit))
}

impl<'a> Options<'a> {
    /// Parses the options. `sorted` is the set that is searched, if it exists.
    fn parse(mut self, args: &[&'a [u8]], form: Form, sorted: Option<&Sorted>) -> Done<Self> {
        let mut at = 0;
        while let Some(word) = args.get(at) {
            let rest = &args[at + 1..];
            at += 1 + match word {
                word if is(word, "WITHDIST") => flag(&mut self.has_distances),
                word if is(word, "WITHHASH") => flag(&mut self.has_scores),
                word if is(word, "WITHCOORD") => flag(&mut self.has_places),
                word if is(word, "ANY") => flag(&mut self.is_any),
                word if is(word, "ASC") => self.ordered(Order::Nearest),
                word if is(word, "DESC") => self.ordered(Order::Farthest),
                word if is(word, "COUNT") && !rest.is_empty() => {
                    let count = parse_int(rest[0])?;
                    if count <= 0 {
                        return Err(fixed("ERR COUNT must be > 0"));
                    }
                    self.count = Some(count as usize);
                    1
                }
                word if form == Form::SearchStore && is(word, "STOREDIST") => flag(&mut self.stores_distances),
                word if form.is_search() => self.searched(word, rest, sorted)?,
                word if form == Form::Radius && !rest.is_empty() && (is(word, "STORE") || is(word, "STOREDIST")) => {
                    self.to = Some(rest[0]);
                    self.stores_distances = is(word, "STOREDIST");
                    1
                }
                _ => return Err(SYNTAX),
            };
        }
        Ok(self)
    }

    fn ordered(&mut self, order: Order) -> usize {
        self.order = order;
        0
    }

    /// Parses the center or the shape of `GEOSEARCH`. Returns the number of arguments after the word.
    fn searched(&mut self, word: &[u8], rest: &[&[u8]], sorted: Option<&Sorted>) -> Done<usize> {
        let is_circle = self.shape.is_some_and(|(shape, _)| matches!(shape, Shape::Circle { .. }));
        match rest {
            [member, ..] if is(word, "FROMMEMBER") && !self.is_from_place => {
                self.center = sorted.map(|sorted| place_of(sorted, member).ok_or(NO_MEMBER)).transpose()?;
                self.is_from_member = true;
                Ok(1)
            }
            [longitude, latitude, ..] if is(word, "FROMLONLAT") && !self.is_from_member => {
                self.center = Some(place(longitude, latitude)?);
                self.is_from_place = true;
                Ok(2)
            }
            [radius, unit, ..] if is(word, "BYRADIUS") && (self.shape.is_none() || is_circle) => {
                self.shape = Some(circle([radius, unit])?);
                Ok(2)
            }
            [width, height, unit, ..] if is(word, "BYBOX") && !is_circle => {
                self.shape = Some(rectangle([width, height, unit])?);
                Ok(3)
            }
            _ => Err(SYNTAX),
        }
    }

    fn check(&self, form: Form, name: &[u8]) -> Done {
        if self.to.is_some() && (self.has_distances || self.has_scores || self.has_places) {
            let what = if form == Form::SearchStore { "GEOSEARCHSTORE" } else { "STORE option in GEORADIUS" };
            return Err(Fail::new(format!(
                "ERR {what} is not compatible with WITHDIST, WITHHASH and WITHCOORD options"
            )));
        }
        let lacks = |what: &str| {
            let text = format!("ERR exactly one of {what} can be specified for ");
            Err(Fail::of_bytes([text.as_bytes(), name].concat()))
        };
        if form.is_search() && !self.is_from_member && !self.is_from_place {
            return lacks("FROMMEMBER or FROMLONLAT");
        }
        if form.is_search() && self.shape.is_none() {
            return lacks("BYRADIUS and BYBOX");
        }
        if self.is_any && self.count.is_none() {
            return Err(fixed("ERR the ANY argument requires COUNT argument"));
        }
        Ok(())
    }
}

fn flag(is_set: &mut bool) -> usize {
    *is_set = true;
    0
}

/// Search of one set, with the form of its reply.
pub(in crate::redis) struct Search {
    sorted: Sorted,
    center: Place,
    shape: Shape,
    /// Length in meters of the unit of distances.
    unit: f64,
    has_distances: bool,
    has_scores: bool,
    has_places: bool,
    order: Order,
    count: usize,
    is_any: bool,
    to: Option<Box<[u8]>>,
    stores_distances: bool,
}

/// Member within the shape.
pub(in crate::redis) struct Found<'a> {
    member: &'a [u8],
    score: Score,
    place: Place,
    /// Distance from the center in meters.
    distance: f64,
}

impl Search {
    /// Returns the ranks of the members in the cells around the center.
    fn ranks(&self) -> impl Iterator<Item = std::ops::Range<usize>> {
        self.shape.cells(self.center).into_iter().map(|cell| {
            let scores = cell.scores();
            let bound = |number: f64, is_exclusive: bool| Bound { score: score(number), is_exclusive };
            self.sorted.ranks(bound(scores.start, false), bound(scores.end, true))
        })
    }

    /// Returns the number of members that are compared with the shape.
    pub(in crate::redis) fn units(&self) -> u64 {
        self.ranks().map(|ranks| ranks.len() as u64).sum()
    }

    /// Returns the key under which the result is stored.
    pub(in crate::redis) fn to(&self) -> Option<&[u8]> {
        self.to.as_deref()
    }

    /// Returns the members within the shape in the requested order.
    pub(in crate::redis) async fn found(&self, pace: &mut Pace) -> Done<Vec<Found<'_>>> {
        let mut room = ANSWER_BYTES_MAX;
        // In the order of distances, or else of discovery.
        let mut found: BTreeMap<(Score, usize), Found<'_>> = BTreeMap::new();
        let mut seen = 0;
        'cells: for ranks in self.ranks() {
            for (member, number) in self.sorted.range(ranks) {
                pace.spend(1).await;
                let place = Place::of_score(number.get());
                let Some(distance) = self.shape.distance(self.center, place) else {
                    continue;
                };
                if self.is_any && found.len() == self.count {
                    break 'cells;
                }
                take_room(&mut room, member)?;
                let first = if self.order == Order::Any { Score::default() } else { score(distance) };
                found.insert((first, seen), Found { member, score: number, place, distance });
                seen += 1;
                if found.len() > self.count {
                    match self.order {
                        Order::Farthest => drop(found.pop_first()),
                        Order::Any | Order::Nearest => drop(found.pop_last()),
                    }
                }
            }
        }
        let mut found: Vec<_> = found.into_values().collect();
        if self.order == Order::Farthest {
            found.reverse();
        }
        Ok(found)
    }

    /// Returns a sorted set of the members, by their places or by their distances.
    pub(in crate::redis) async fn stored(&self, found: &[Found<'_>], pace: &mut Pace) -> Structure {
        let mut sorted = Sorted::default();
        for each in found {
            pace.spend(1).await;
            let by = if self.stores_distances { score(each.distance / self.unit) } else { each.score };
            sorted.set(each.member, by);
        }
        Structure::Sorted(sorted)
    }

    /// Writes the reply.
    pub(in crate::redis) async fn write(&self, found: &[Found<'_>], out: &mut Writer, pace: &mut Pace) {
        if self.to.is_some() {
            return out.len(found.len());
        }
        out.array(found.len());
        let parts = [self.has_distances, self.has_scores, self.has_places].into_iter().filter(|is_set| *is_set).count();
        for each in found {
            pace.spend(1).await;
            if parts > 0 {
                out.array(1 + parts);
            }
            out.bulk(each.member);
            if self.has_distances {
                write_distance(out, each.distance / self.unit);
            }
            if self.has_scores {
                out.int(each.score.get() as i64);
            }
            if self.has_places {
                write_place(out, each.place);
            }
        }
    }

    /// Searches a small set in this step, and leaves a large one to slices.
    fn serve(self, step: &mut Step<'_, '_>) -> Done {
        if !step.admits(self.units(), "members")? {
            step.sliced = Some(Box::new(Sliced::Search(self)));
            return Ok(());
        }
        let mut pace = Pace::at_once();
        let found = at_once(self.found(&mut pace))?;
        if let Some(key) = self.to() {
            let stored = at_once(self.stored(&found, &mut pace));
            store(step, key, stored)?;
        }
        at_once(self.write(&found, step.out, &mut pace));
        Ok(())
    }
}

/// Runs a search. `begun` holds the options that have positions instead of words, and `words` the others.
fn run<'a>(
    step: &mut Step<'_, '_>,
    (key, name): (&[u8], &[u8]),
    form: Form,
    begin: impl FnOnce(Option<&Sorted>) -> Done<Options<'a>>,
    words: &[&'a [u8]],
) -> Done {
    let sorted = part::<Sorted>(step.db, key)?.cloned();
    let options = begin(sorted.as_ref())?.parse(words, form, sorted.as_ref())?;
    options.check(form, name)?;
    let (Some(sorted), Some(center), Some((shape, unit))) = (sorted, options.center, options.shape) else {
        match options.to {
            Some(to) => {
                step.db.delete(to);
                step.out.int(0);
            }
            None => step.out.array(0),
        }
        return Ok(());
    };
    // The first members that are found would be any, unless the search goes on to find the nearest.
    let is_unordered = options.order == Order::Any && options.count.is_some() && !options.is_any;
    let search = Search {
        sorted,
        center,
        shape,
        unit,
        has_distances: options.has_distances,
        has_scores: options.has_scores,
        has_places: options.has_places,
        order: if is_unordered { Order::Nearest } else { options.order },
        count: options.count.unwrap_or(usize::MAX),
        is_any: options.is_any,
        to: options.to.map(Into::into),
        stores_distances: options.stores_distances,
    };
    search.serve(step)
}

pub(super) fn geosearch(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    run(step, (args[1], args[0]), Form::Search, |_| Ok(Options::default()), &args[2..])
}

pub(super) fn geosearchstore(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let begin = |_: Option<&Sorted>| Ok(Options { to: Some(args[1]), ..Options::default() });
    run(step, (args[2], args[0]), Form::SearchStore, begin, &args[3..])
}

pub(super) fn georadius(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    around_place(step, args, Form::Radius)
}

pub(super) fn georadius_ro(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    around_place(step, args, Form::RadiusReadOnly)
}

fn around_place(step: &mut Step<'_, '_>, args: &[&[u8]], form: Form) -> Done {
    let begin = |_: Option<&Sorted>| {
        let center = Some(place(args[2], args[3])?);
        Ok(Options { center, shape: Some(circle([args[4], args[5]])?), ..Options::default() })
    };
    run(step, (args[1], args[0]), form, begin, &args[6..])
}

pub(super) fn georadiusbymember(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    around_member(step, args, Form::Radius)
}

pub(super) fn georadiusbymember_ro(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    around_member(step, args, Form::RadiusReadOnly)
}

fn around_member(step: &mut Step<'_, '_>, args: &[&[u8]], form: Form) -> Done {
    let begin = |sorted: Option<&Sorted>| {
        // Without a set, neither the member nor the radius is looked at.
        let Some(sorted) = sorted else { return Ok(Options::default()) };
        let center = Some(place_of(sorted, args[2]).ok_or(NO_MEMBER)?);
        Ok(Options { center, shape: Some(circle([args[3], args[4]])?), ..Options::default() })
    };
    run(step, (args[1], args[0]), form, begin, &args[5..])
}

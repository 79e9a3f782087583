//! `thalweg subscribe`: records as they come, in the form that the reader wants.

mod form;

use std::collections::HashMap;
use std::io::{self, BufWriter, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use client::{Batch, Event, Start, Subscription};
use thalweg::config::Config;

use super::connect;
use crate::args::Subscribe;
use crate::block_on;
use crate::output::{Failure, Result, USAGE, note};
use form::Form;

/// What is gathered for the output while more records are there.
const OUTPUT_BUFFER_BYTES: usize = 64 << 10;

pub fn run(config: &Config, args: Subscribe, is_json: bool) -> Result {
    let start = parse_start(&args.from)?;
    let form = Form::new(&args, is_json)?;
    block_on(async {
        let client = connect(config).await?;
        let mut builder = client.subscribe(&args.topic).start(start).partition(args.partition).overflow(args.overflow);
        if let Some(group) = &args.group {
            builder = builder.group(group);
        }
        let mut subscription = builder.open().await?;
        let printed = print(&mut subscription, &args, &form).await;
        drop(subscription);
        client.close().await;
        match printed {
            Err(Ended::Output(error)) => Err(error.into()),
            Err(Ended::Broker(error)) => Err(error.into()),
            Ok(()) => Ok(()),
        }
    })
}

enum Ended {
    Output(io::Error),
    Broker(client::Error),
}

impl From<io::Error> for Ended {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

impl From<client::Error> for Ended {
    fn from(error: client::Error) -> Self {
        Self::Broker(error)
    }
}

async fn print(subscription: &mut Subscription, args: &Subscribe, form: &Form) -> Result<(), Ended> {
    let mut out = BufWriter::with_capacity(OUTPUT_BUFFER_BYTES, io::stdout());
    form.write_head(&mut out)?;
    let mut left = args.count.unwrap_or(u64::MAX);
    let mut ends: HashMap<u32, u64> = HashMap::new();
    if args.until_end {
        ends = subscription.sources().iter().filter(|s| s.start < s.end).map(|s| (s.partition, s.end)).collect();
        if ends.is_empty() {
            return Ok(());
        }
    }
    while left > 0 {
        // What was gathered goes out before there is anything to wait for.
        let event = match tokio::time::timeout(Duration::ZERO, subscription.next_event()).await {
            Ok(event) => event?,
            Err(_) => {
                out.flush()?;
                subscription.next_event().await?
            }
        };
        match event {
            Event::Batch(batch) => {
                print_batch(&mut out, &batch, form, &mut left)?;
                if args.until_end {
                    ends.retain(|partition, end| *partition != batch.partition || batch.batch.next_offset() < *end);
                    if ends.is_empty() {
                        break;
                    }
                }
            }
            Event::Gap { topic, partition, from, to } => {
                out.flush()?;
                note(&format!("{topic} partition {partition}: records {from} to {} did not come", to - 1));
            }
            Event::Reconnected => {
                out.flush()?;
                eprintln!(
                    "thalweg: the connection broke and was made again; what was published meanwhile did not come"
                );
            }
            Event::Restarted => {
                out.flush()?;
                note("the broker was restarted; its topics in memory begin anew");
            }
        }
    }
    Ok(out.flush()?)
}

fn print_batch(out: &mut impl Write, batch: &Batch, form: &Form, left: &mut u64) -> Result<(), Ended> {
    for record in &batch.records()? {
        if *left == 0 {
            break;
        }
        *left -= 1;
        form.write(out, batch, &record?)?;
    }
    Ok(())
}

/// `live`, `earliest`, an offset, `@TIME` (RFC 3339, UTC) or `@-5m`.
fn parse_start(text: &str) -> Result<Start> {
    let wrong = |why: &str| {
        Failure::new(
            USAGE,
            format!("--from {text}: {why}; write live, earliest, an offset, @2026-11-21T08:00:00Z or @-5m"),
        )
    };
    match text {
        "live" => return Ok(Start::Live),
        "earliest" => return Ok(Start::Earliest),
        _ => {}
    }
    let Some(time) = text.strip_prefix('@') else {
        return text.parse().map(Start::Offset).map_err(|e| wrong(&format!("no offset: {e}")));
    };
    if let Some(ago) = time.strip_prefix('-') {
        let seconds = parse_duration(ago).ok_or_else(|| wrong("no duration"))?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        return Ok(Start::Time(now.saturating_sub(seconds).as_millis() as i64));
    }
    parse_time(time).map(Start::Time).ok_or_else(|| wrong("no time"))
}

/// `90s`, `5m`, `2h`, `1d`.
fn parse_duration(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let seconds: u64 = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return None,
    };
    Some(Duration::from_secs(number.parse::<u64>().ok()?.checked_mul(seconds)?))
}

/// `2026-11-21`, `2026-11-21T08:00:00` or the same with `Z`, into milliseconds since 1970.
fn parse_time(text: &str) -> Option<i64> {
    let text = text.strip_suffix('Z').unwrap_or(text);
    let (date, time) = text.split_once('T').unwrap_or((text, "00:00:00"));
    let numbers =
        |text: &str, separator| text.split(separator).map(|n| n.parse::<i64>().ok()).collect::<Option<Vec<_>>>();
    let [year, month, day] = numbers(date, '-')?.try_into().ok()?;
    let [hour, minute, second] = numbers(time, ':')?.try_into().ok()?;
    let is_valid = (1..=12).contains(&month) && (1..=31).contains(&day) && hour < 24 && minute < 60 && second < 60;
    is_valid.then(|| (days_from_civil(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second) * 1000)
}

/// Days since 1970 of a date in the Gregorian calendar (Howard Hinnant's `days_from_civil`).
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year - era * 400;
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::form::format_time;
    use super::*;

    #[test]
    fn times_go_there_and_back() {
        for (text, ms) in [
            ("1970-01-01", 0),
            ("2000-02-29T12:30:01Z", 951_827_401_000),
            ("2026-11-21T08:00:00", 1_795_248_000_000),
            ("1969-12-31T23:59:59Z", -1000),
        ] {
            assert_eq!(parse_time(text), Some(ms), "{text}");
            assert_eq!(parse_time(&format_time(ms).replace(".000", "")), Some(ms));
        }
        for bad in ["", "2026", "2026-13-01", "2026-01-01T25:00:00", "x-y-z"] {
            assert_eq!(parse_time(bad), None, "{bad}");
        }
    }

    #[test]
    fn starts_are_what_the_help_says() {
        assert_eq!(parse_start("live").expect("valid"), Start::Live);
        assert_eq!(parse_start("17").expect("valid"), Start::Offset(17));
        assert!(matches!(parse_start("@-5m"), Ok(Start::Time(_))));
        for bad in ["soon", "-1", "@", "@-", "@-5", "@-5y"] {
            assert!(parse_start(bad).is_err(), "{bad}");
        }
    }
}

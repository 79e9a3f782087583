//! `thalweg request`: send a request and print the answer.

use std::io::Write;
use std::time::Duration;

use client::Record;
use thalweg::config::Config;

use super::connect;
use crate::args::Request;
use crate::block_on;
use crate::output::Result;

pub fn run(config: &Config, args: &Request, is_json: bool) -> Result {
    block_on(async {
        let client = connect(config).await?;
        let record = Record::new(args.value.clone());
        let answer = client.request(&args.topic, record, Duration::from_millis(args.timeout_ms)).await?;
        let mut out = std::io::stdout();
        if is_json {
            let value = String::from_utf8_lossy(answer.value()).into_owned();
            writeln!(out, "{}", serde_json::json!({ "value": value, "timestamp_ms": answer.timestamp_ms }))?;
        } else {
            out.write_all(answer.value())?;
            writeln!(out)?;
        }
        client.close().await;
        Ok(())
    })
}

//! `thalweg group`: list, describe, reset and delete consumer groups.

use std::collections::HashMap;
use std::io::Write;

use client::{Client, ErrorKind, GroupInfo, GroupPartition, GroupSummary, MemberInfo, OffsetReset};
use serde_json::{Value, json};
use thalweg::config::Config;

use super::time::parse_start;
use super::{connect, units};
use crate::args::{Group, GroupReset};
use crate::block_on;
use crate::output::Result;

/// Text of an empty cell.
const DASH: &str = "-";

pub fn run(config: &Config, command: Group, is_json: bool) -> Result {
    block_on(async {
        let client = connect(config).await?;
        let mut out = std::io::stdout();
        match command {
            Group::List => {
                let groups = client.list_groups().await?;
                if is_json {
                    writeln!(out, "{}", Value::Array(groups.iter().map(summary_to_json).collect()))?
                } else {
                    list(&mut out, &groups)?
                }
            }
            Group::Describe { group } => {
                let info = client.describe_group(&group).await?;
                if is_json { writeln!(out, "{}", to_json(&info))? } else { describe(&mut out, &info)? }
            }
            Group::Reset(args) => reset(&mut out, &client, args, is_json).await?,
            Group::Delete { group } => {
                client.delete_group(&group).await?;
                if is_json {
                    writeln!(out, "{}", json!({ "deleted": group }))?
                } else {
                    writeln!(out, "deleted consumer group {group} with its offsets")?
                }
            }
        }
        client.close().await;
        Ok(())
    })
}

async fn reset(out: &mut impl Write, client: &Client, args: GroupReset, is_json: bool) -> Result {
    let to = match args.to.as_str() {
        "none" => None,
        to => Some(parse_start("--to", to)?),
    };
    let before = match client.describe_group(&args.group).await {
        Ok(info) => committed_in(&info, &args.topic),
        // The reset creates the group, unless it deletes offsets.
        Err(error) if error.kind == ErrorKind::NotFound && to.is_some() => HashMap::new(),
        Err(error) => return Err(error.into()),
    };
    let group = args.group;
    let topic = args.topic;
    let is_dry_run = args.dry_run;
    let request =
        OffsetReset { group: group.clone(), topic: topic.clone(), partitions: args.partition, to, is_dry_run };
    let after = client.reset_offsets(request).await?;
    let rows = after.iter().map(|(partition, offset)| (*partition, before.get(partition).copied(), *offset));
    if is_json {
        let partition = |(partition, from, to)| json!({ "partition": partition, "from": from, "to": to });
        let partitions: Vec<Value> = rows.map(partition).collect();
        let told = json!({ "group": group, "topic": topic, "dry_run": is_dry_run, "partitions": partitions });
        return Ok(writeln!(out, "{told}")?);
    }
    let verb = if is_dry_run { "would continue" } else { "continues" };
    writeln!(out, "consumer group {group} {verb} in topic {topic} at:\n")?;
    let mut table = units::table();
    table.set_header(["PARTITION", "FROM", "TO"]);
    for (partition, from, to) in rows {
        table.add_row([partition.to_string(), or_dash(from), or_dash(to)]);
    }
    Ok(writeln!(out, "{table}")?)
}

fn committed_in(info: &GroupInfo, topic: &str) -> HashMap<u32, u64> {
    let partitions = info.partitions.iter().filter(|(of, _)| of == topic).flat_map(|(_, partitions)| partitions);
    partitions.filter_map(|partition| Some((partition.partition, partition.committed?))).collect()
}

fn list(out: &mut impl Write, groups: &[GroupSummary]) -> Result {
    if groups.is_empty() {
        let advice = "`thalweg subscribe TOPIC --consumer-group NAME` creates one";
        return Ok(writeln!(out, "{}", units::nothing("consumer groups", advice))?);
    }
    let mut table = units::table();
    table.set_header(["GROUP", "STATE", "MEMBERS", "OFFSETS", "LAG"]);
    for group in groups {
        table.add_row([
            group.group.clone(),
            group.state.name().to_owned(),
            group.members.to_string(),
            group.offsets.to_string(),
            group.lag.to_string(),
        ]);
    }
    Ok(writeln!(out, "{table}")?)
}

fn describe(out: &mut impl Write, info: &GroupInfo) -> Result {
    let mut head = units::table();
    head.add_row(["state", info.state.name()]);
    head.add_row(["epoch", &info.epoch.to_string()]);
    head.add_row(["assignor", info.assignor.name()]);
    head.add_row(["lag", &lag_of(info).to_string()]);
    writeln!(out, "consumer group {}\n{head}\n", info.group)?;
    if !info.members.is_empty() {
        let mut members = units::table();
        members.set_header(["MEMBER", "INSTANCE", "CLIENT", "STATE", "PARTITIONS", "TOPICS"]);
        for (at, member) in info.members.iter().enumerate() {
            let partitions = info.partitions.iter().flat_map(|(_, partitions)| partitions);
            members.add_row([
                member.member.clone(),
                instance_of(member).unwrap_or(DASH).to_owned(),
                member.client.clone(),
                member.state.name().to_owned(),
                partitions.filter(|partition| partition.owner == Some(at as u32)).count().to_string(),
                member.topics.join(" "),
            ]);
        }
        writeln!(out, "{members}\n")?;
    }
    let mut table = units::table();
    table.set_header(["TOPIC", "PARTITION", "COMMITTED", "START", "END", "LAG", "MEMBER"]);
    for (topic, partitions) in &info.partitions {
        for p in partitions {
            let owner = owner_of(info, p);
            table.add_row([
                topic.clone(),
                p.partition.to_string(),
                or_dash(p.committed),
                p.start.to_string(),
                p.end.to_string(),
                or_dash(p.lag()),
                owner.map_or(DASH, |member| instance_of(member).unwrap_or(&member.member)).to_owned(),
            ]);
        }
    }
    Ok(writeln!(out, "{table}")?)
}

fn to_json(info: &GroupInfo) -> Value {
    let member = |member: &MemberInfo| {
        json!({
            "member": member.member,
            "instance": instance_of(member),
            "client": member.client,
            "state": member.state.name(),
            "epoch": member.epoch,
            "topics": member.topics,
        })
    };
    let partition = |topic: &str, p: &GroupPartition| {
        json!({
            "topic": topic,
            "partition": p.partition,
            "committed": p.committed,
            "committed_ms": p.committed.map(|_| p.committed_ms),
            "start": p.start,
            "end": p.end,
            "lag": p.lag(),
            "member": owner_of(info, p).map(|member| &member.member),
        })
    };
    let of_topic = |(topic, partitions): &(String, Vec<GroupPartition>)| {
        partitions.iter().map(|p| partition(topic, p)).collect::<Vec<_>>()
    };
    json!({
        "group": info.group,
        "state": info.state.name(),
        "epoch": info.epoch,
        "assignor": info.assignor.name(),
        "lag": lag_of(info),
        "members": info.members.iter().map(member).collect::<Vec<_>>(),
        "partitions": info.partitions.iter().flat_map(of_topic).collect::<Vec<_>>(),
    })
}

fn summary_to_json(group: &GroupSummary) -> Value {
    let state = group.state.name();
    let members = group.members;
    json!({ "group": group.group, "state": state, "members": members, "offsets": group.offsets, "lag": group.lag })
}

fn lag_of(info: &GroupInfo) -> u64 {
    info.partitions.iter().flat_map(|(_, partitions)| partitions).filter_map(GroupPartition::lag).sum()
}

fn owner_of<'a>(info: &'a GroupInfo, partition: &GroupPartition) -> Option<&'a MemberInfo> {
    info.members.get(partition.owner? as usize)
}

fn instance_of(member: &MemberInfo) -> Option<&str> {
    (!member.instance.is_empty()).then_some(member.instance.as_str())
}

fn or_dash(number: Option<u64>) -> String {
    number.map_or(DASH.to_owned(), |number| number.to_string())
}

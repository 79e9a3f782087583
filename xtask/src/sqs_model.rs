//! `cargo xtask sqs-model`: writes the SDKs' model of the SQS requests, for a test that iterates over it.
//!
//! The source is the service model in the wheel of botocore. For each operation the output has the members with their
//! types, and the required ones; for a member that is a list of structures, it has the members of the elements.

use std::fs;

use serde_json::{Map, Value, json};

use crate::run::{Call, Outcome, root};

const MODEL: &str = "crates/thalweg/tests/it/door/sqs/model.json";
const DOWNLOADS: &str = "target/sqs-model";
const IN_WHEEL: &str = "botocore/data/sqs/2012-11-05/service-2.json.gz";
/// Version whose model is committed.
const VERSION: &str = "1.44.5";

pub fn run(args: &[&str]) -> Outcome {
    let version = match args {
        [] => VERSION,
        [version] => version,
        _ => return Err("the only argument is a version of botocore".into()),
    };
    let wheel = format!("{DOWNLOADS}/botocore-{version}-py3-none-any.whl");
    if !root().join(&wheel).exists() {
        Call::line("python3 -m pip download --quiet --no-deps --dest")
            .args([DOWNLOADS.to_owned(), format!("botocore=={version}")])
            .run()?;
    }
    let unpack = format!("unzip -p {wheel} {IN_WHEEL} | gunzip");
    let text = Call::new("sh").args(["-c".to_owned(), unpack]).output()?;
    let model: Value = serde_json::from_str(&text).map_err(|e| format!("{IN_WHEEL}: {e}"))?;
    let out = json!({ "botocore": version, "operations": operations(&model)? });
    let out = serde_json::to_string_pretty(&out).map_err(|e| e.to_string())? + "\n";
    fs::write(root().join(MODEL), out).map_err(|e| format!("{MODEL}: {e}"))?;
    println!("wrote {MODEL}");
    Ok(())
}

fn operations(model: &Value) -> Outcome<Map<String, Value>> {
    let operations = model["operations"].as_object().ok_or("the model has no operations")?;
    let of = |operation: &Value| structure(model, &operation["input"]["shape"]);
    Ok(operations.iter().map(|(name, operation)| (name.clone(), of(operation))).collect())
}

/// Returns a structure by its name: its members with their types.
fn structure(model: &Value, name: &Value) -> Value {
    let shape = shape(model, name);
    let members = shape["members"].as_object().into_iter().flatten();
    let members: Map<String, Value> =
        members.map(|(member, target)| (member.clone(), member_type(model, &target["shape"]))).collect();
    json!({ "members": members, "required": shape.get("required").cloned().unwrap_or_else(|| json!([])) })
}

fn member_type(model: &Value, name: &Value) -> Value {
    let of = shape(model, name);
    let element = &of["member"]["shape"];
    match shape(model, element)["type"].as_str() {
        Some("structure") => json!({ "list": structure(model, element) }),
        _ => of["type"].clone(),
    }
}

fn shape<'t>(model: &'t Value, name: &Value) -> &'t Value {
    &model["shapes"][name.as_str().unwrap_or_default()]
}

//! `thalweg mesh`: begin a mesh of sites, join one, and look after its sites.

mod demo;
mod state;

use std::io::{BufRead, stdin};

use client::{Invitation, MeshStatus, SiteName};
use doors::http::mesh_json;
use serde_json::json;
use thalweg::config::Config;

use super::confirm;
use super::user::{on, say};
use crate::args::{Mesh, Yes};
use crate::output::{Failure, Result, USAGE};

pub fn run(config: &Config, command: Mesh, is_json: bool) -> Result {
    match command {
        Mesh::Init { site } => init(config, &site, is_json),
        Mesh::Invite { minutes } => {
            let invitation = on(config, async |client| client.invite_site(minutes).await)?;
            say(is_json, json!({ "invitation": invitation.reveal(), "minutes": minutes }), invitation.reveal())
        }
        Mesh::Join { invitation, site } => {
            let line = match invitation {
                Some(invitation) => invitation,
                None => stdin().lock().lines().next().transpose()?.unwrap_or_default(),
            };
            if line.trim().is_empty() {
                let text = "there is no invitation, neither as an argument nor on the standard input";
                return Err(Failure::new(USAGE, text));
            }
            join(config, &site, Invitation::new(line), is_json)
        }
        Mesh::Status => state::status(&described(config)?, is_json),
        Mesh::Topics => state::topics(&on(config, async |client| client.mesh_topics().await)?, is_json),
        Mesh::Routes => state::routes(&described(config)?, is_json),
        Mesh::Stats => state::stats(&described(config)?.stats, is_json),
        Mesh::Remove { site, yes } => remove(config, &site, yes, is_json),
        Mesh::Leave { yes } => leave(config, yes, is_json),
        Mesh::Demo { seconds } => demo::run(seconds, is_json),
    }
}

fn described(config: &Config) -> Result<MeshStatus> {
    on(config, async |client| client.describe_mesh().await)
}

fn init(config: &Config, site: &str, is_json: bool) -> Result {
    let site = SiteName::parse(site)?;
    let status = on(config, async |client| client.init_mesh(site).await)?;
    let next = match status.address {
        Some(_) => "Then, for each further site: thalweg mesh invite",
        None => {
            "Other sites cannot reach this one: before you invite one, set mesh, and mesh_advertise if mesh is \
                 0.0.0.0 or [::]"
        }
    };
    let text = format!("{}\n{next}", state::head(&status));
    say(is_json, mesh_json::status(&status), &text)
}

fn join(config: &Config, site: &str, invitation: Invitation, is_json: bool) -> Result {
    let site = SiteName::parse(site)?;
    let status = on(config, async |client| client.join_mesh(site, invitation).await)?;
    let text = format!("{}\nSee its links: thalweg mesh status", state::head(&status));
    say(is_json, mesh_json::status(&status), &text)
}

fn remove(config: &Config, site: &str, yes: Yes, is_json: bool) -> Result {
    let name = SiteName::parse(site)?;
    confirm::ask(yes, &format!("Remove the site {site} from the mesh?"))?;
    on(config, async |client| client.remove_site(name).await)?;
    let text = format!("removed the site {site}; every site refuses its key from now on");
    say(is_json, json!({ "removed": site }), &text)
}

fn leave(config: &Config, yes: Yes, is_json: bool) -> Result {
    confirm::ask(yes, "Leave the mesh, and delete the key of this site?")?;
    on(config, async |client| client.leave_mesh().await)?;
    let text = "left the mesh, and deleted the key of this site; topics and records stay";
    say(is_json, json!({ "is_changed": true }), text)
}

//! Permission to copy the whole broker.

use std::net::IpAddr;

use engine::Result;
use engine::security::{Operation, Resource};

use super::{Identity, Security};

impl Security {
    /// Checks that a client may copy everything, with what verifies passwords and with the key of secrets. Without
    /// access control, being logged in is not enough for that: it has to be an administrator; without logins, a program
    /// on the broker's machine.
    pub fn authorize_copy(&self, identity: &Identity, is_login_required: bool) -> Result<()> {
        if self.is_authorizing() || identity.tenant().is_some() {
            return self.authorize(identity, Operation::All, &Resource::CLUSTER);
        }
        let is_administrator = identity.is_administrator() || self.super_users.contains(identity.user());
        let is_here = identity.host().parse().is_ok_and(|host: IpAddr| host.is_loopback());
        if is_administrator || (!is_login_required && is_here) {
            return Ok(());
        }
        let mut denied = self.denied(identity, format_args!("take a backup"), None);
        // It says more than which permission is missing: there is none that could be given.
        let message = "a backup has everything in it, also what verifies passwords: without authorization = true only \
                       an administrator may take one. Run the command on the broker's machine as its user, or log \
                       in as one of super_users";
        denied.message = message.to_owned();
        Err(denied)
    }
}

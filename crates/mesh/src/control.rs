//! Control frames of established links.
//!
//! Two sites that dial each other have two links for a moment, and a site may send frames first on one of them and then
//! on the other. Those on the former link are handled before those on the link that replaces it, or not at all: the
//! control streams of the links to a site take turns.

use std::sync::Arc;
use std::time::Duration;

use engine::Error;
use engine::mesh::{SiteName, SiteRole};
use quinn::RecvStream;
use tokio::sync::OwnedMutexGuard;

use crate::frame::Frame;
use crate::handshake::unexpected;
use crate::link::{CONTROL_ENDED, Link, closed, code, read_frame};
use crate::running::Running;

/// Time for the last control frames of a link that is replaced to arrive. Those of the next one wait for them.
pub(crate) const HANDOVER: Duration = Duration::from_millis(500);

/// Turn of a link to have its control frames read, among the links to the same site.
pub(crate) type Turn = OwnedMutexGuard<()>;

impl Running {
    /// Returns the turn to have the frames of a link to a site read, unless another link has it.
    pub(crate) fn try_turn(&self, site: &SiteName) -> Option<Turn> {
        self.turns_of(site).try_lock_owned().ok()
    }

    /// Reads the control frames of a link until it ends, or another one has replaced it.
    pub(crate) async fn read_control(self: Arc<Self>, link: Arc<Link>, receive: RecvStream, turn: Option<Turn>) {
        let late = async {
            link.until_replaced().await;
            tokio::time::sleep(HANDOVER).await;
        };
        let read = tokio::select! {
            read = self.read_frames(&link, receive, turn) => read,
            () = late => Ok(()),
        };
        // A peer ends the stream when it has another link, which this site has, too, or will have in a moment.
        let error = match read {
            Err(error) => Some(error.message),
            Ok(()) => {
                let replaced = tokio::time::timeout(HANDOVER, link.until_replaced()).await;
                replaced.is_err().then(|| CONTROL_ENDED.to_owned())
            }
        };
        if let Some(error) = error.filter(|_| link.is_open()) {
            link.connection.close(code::PROTOCOL.into(), error.as_bytes());
        }
        // The reason with which the peer has closed the connection says more than the end of the stream.
        link.connection.closed().await;
        self.lose_link(&link, None);
    }

    /// Handles the control frames of a link in its turn, up to the end of their stream.
    async fn read_frames(
        self: &Arc<Self>,
        link: &Arc<Link>,
        mut receive: RecvStream,
        turn: Option<Turn>,
    ) -> Result<(), Error> {
        let _turn = match turn {
            Some(turn) => turn,
            None => tokio::select! {
                turn = self.turns_of(&link.site).lock_owned() => turn,
                reason = link.connection.closed() => return Err(closed(reason)),
            },
        };
        while let Some(frame) = read_frame(&mut receive).await? {
            self.on_frame(link, frame)?;
        }
        Ok(())
    }

    fn on_frame(self: &Arc<Self>, link: &Arc<Link>, frame: Frame) -> Result<(), Error> {
        match frame {
            Frame::Sites(entries) => self.learn(entries, Some(&link.site)),
            Frame::Linked(sites) => {
                *link.relays_to.lock() = sites.into_iter().collect();
                self.changed.notify_one();
            }
            Frame::Relayed { from, to, frame } if to == *self.site() => {
                if link.role != SiteRole::Hub {
                    return Err(Error::malformed("only a hub relays frames of other sites"));
                }
                self.on_frame_of(&from, *frame)?;
            }
            Frame::Relayed { from, to, frame } => {
                if from != link.site || self.settings.role != SiteRole::Hub {
                    return Err(Error::malformed(format!("this site does not relay frames from {from} to {to}")));
                }
                // It relays to its own links only, so no frame makes more than one stop. One to a site that has just
                // gone is lost, as it would be on a link that ends.
                let next = || self.links.lock().get(&to).cloned();
                let relayed = Frame::Relayed { from, to: to.clone(), frame };
                while next().is_some_and(|next| !next.send(&relayed)) {}
            }
            frame => self.on_frame_of(&link.site, frame)?,
        }
        Ok(())
    }

    /// Handles a frame of discovery, of copies, or of live topics.
    fn on_frame_of(self: &Arc<Self>, from: &SiteName, frame: Frame) -> Result<(), Error> {
        match frame {
            Frame::Advertise { epoch, topic, ttl_ms } => self.on_advertise(from, epoch, &topic, ttl_ms),
            Frame::Withdraw { epoch, topic } => self.on_withdraw(from, epoch, &topic),
            Frame::Advertised { epoch, topics } => self.on_advertised(from, epoch, topics),
            Frame::LookUp { id, topic, watch_ms } => self.on_look_up(from, id, topic, watch_ms),
            Frame::Found { id, sites } => self.on_found(id, from, sites),
            Frame::Changed { topic, sites } => self.on_changed(from, &topic, sites),
            Frame::Offered(topics) => self.on_offered(from, topics),
            asked @ Frame::Copy { .. } => self.on_copy(from, asked),
            refused @ Frame::Refused { .. } => self.on_refused(from, refused),
            Frame::Listening { generation, listeners } => self.on_listening(from, generation, listeners),
            Frame::Begun { run, topic } => self.on_begun(from, run, &topic),
            other => return Err(unexpected(&other)),
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "control_tests.rs"]
mod tests;

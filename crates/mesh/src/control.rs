//! Control frames of established links.

use std::sync::Arc;

use engine::Error;
use engine::mesh::{SiteName, SiteRole};
use quinn::RecvStream;

use crate::frame::Frame;
use crate::handshake::unexpected;
use crate::link::{Link, code, read_frame};
use crate::running::Running;

impl Running {
    /// Reads the control frames of a link until it ends.
    pub(crate) async fn read_control(self: Arc<Self>, link: Arc<Link>, mut receive: RecvStream) {
        let error = loop {
            let read = match read_frame(&mut receive).await {
                Ok(frame) => self.on_frame(&link, frame),
                Err(error) => Err(error),
            };
            if let Err(error) = read {
                break error;
            }
        };
        if link.is_open() {
            link.connection.close(code::PROTOCOL.into(), error.message.as_bytes());
        }
        // The reason with which the peer has closed the connection says more than the end of the stream.
        link.connection.closed().await;
        self.lose_link(&link, None);
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
                let next = self.links.lock().get(&to).cloned();
                if let Some(next) = next {
                    next.send(&Frame::Relayed { from, to, frame });
                }
            }
            frame => self.on_frame_of(&link.site, frame)?,
        }
        Ok(())
    }

    /// Handles a frame of discovery, of copies, or of live topics.
    fn on_frame_of(self: &Arc<Self>, from: &SiteName, frame: Frame) -> Result<(), Error> {
        match frame {
            Frame::Advertise { instance, topic, ttl_ms } => self.on_advertise(from, instance, &topic, ttl_ms),
            Frame::Withdraw { instance, topic } => self.on_withdraw(from, instance, &topic),
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

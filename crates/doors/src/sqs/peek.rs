//! A look at the messages of a queue that nobody is given, at the path where LocalStack has it.

use broker::Peeked;
use engine::queue::Phase;

use super::address::{Home, Place};
use super::codec::Answer;
use super::errors::Result;
use super::map::{Asker, Sqs};
use super::messages::{Known, View};
use super::model::{Text, required_text};
use super::query::Form;

pub(super) const PATH: &str = "/_aws/sqs/messages";
/// Messages of one answer, and their bytes.
const MESSAGES_MAX: usize = 1000;
const BYTES_MAX: usize = 11 << 20;
/// In place of a receipt: it is none.
const NO_RECEIPT: &str = "SQS/BACKDOOR/ACCESS";

impl Sqs {
    /// The queue is in the rest of the path, or a parameter.
    pub async fn peek(&self, asker: &Asker<'_>, rest: &str, form: &Form<'_>) -> Result<Answer> {
        let found = match rest.trim_matches('/').split('/').collect::<Vec<_>>()[..] {
            [region, account, name] => {
                let home = Home { account: account.to_owned(), region: region.to_owned() };
                self.find_place(Place::new(&home, name)).await?
            }
            _ => {
                let url = form.get("QueueUrl").map(|url| Text(url.into()));
                required_text("QueueUrl", &url)?;
                self.find(asker, &url).await?
            }
        };
        let is_set =
            |name: &str| form.get(name).is_some_and(|value| value == "1" || value.eq_ignore_ascii_case("true"));
        let (shows_leased, shows_delayed) = (is_set("ShowInvisible"), is_set("ShowDelayed"));
        let (mut shown, mut bytes) = (Vec::new(), 0);
        let mut after = None;
        'pages: loop {
            let page = self.broker.peek(found.name(), after, MESSAGES_MAX).await?;
            let Some(last) = page.last() else {
                break;
            };
            after = Some((last.partition, last.message.offset()));
            for peeked in &page {
                let is_shown = match peeked.phase {
                    Phase::Leased => shows_leased,
                    Phase::Delayed => shows_delayed,
                    Phase::Waiting | Phase::Left => true,
                };
                if !is_shown {
                    continue;
                }
                bytes += peeked.message.body().len();
                if shown.len() == MESSAGES_MAX || (bytes > BYTES_MAX && !shown.is_empty()) {
                    break 'pages;
                }
                let Peeked { id, message, attempts, .. } = peeked;
                let known = Known { id: *id, attempts: *attempts, first_received_ms: None };
                let mut message = self.show(&found.place, &View::all(), message, &known, NO_RECEIPT.to_owned());
                if shows_leased {
                    message.system.push(("IsVisible", (peeked.phase != Phase::Leased).to_string()));
                }
                if shows_delayed {
                    message.system.push(("IsDelayed", (peeked.phase == Phase::Delayed).to_string()));
                }
                shown.push(message);
            }
        }
        Ok(Answer::Messages(shown))
    }
}

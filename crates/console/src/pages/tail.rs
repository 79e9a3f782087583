//! Records of a topic as they arrive. The script reads them from the events of the HTTP API.

use maud::html;

use super::topics::path;
use crate::parts::encode;
use crate::shell::Page;

/// Number of records that the page keeps; older ones leave it.
const KEPT: u32 = 200;

pub fn page(topic: &str) -> Page {
    let to = path(topic);
    Page::new("Live tail").below("/console/topics", "Topics").below(&to, topic).rest(html! {
        nav.tabs aria-label="Topic" {
            a href=(to) { "Partitions" }
            a href={ (to) "/records" } { "Records" }
            a href={ (to) "/tail" } aria-current="page" { "Live tail" }
        }
        div #tail data-events={ "/v1/topics/" (encode(topic)) "/events" } data-records={ (to) "/records" }
            data-kept=(KEPT) {
            div.send { button type="button" data-pause { "Pause" } output role="status" { "Waiting for records." } }
            div.table role="region" aria-label="Records" tabindex="0" {
                table {
                    caption.hidden { "Records as they arrive, the newest first" }
                    thead { tr {
                        th scope="col" class="n" { "Partition" } th scope="col" class="n" { "Offset" }
                        th scope="col" { "Time" } th scope="col" { "Key" } th scope="col" { "Value" }
                    } }
                    tbody {}
                }
            }
            noscript { p.warning { "The live tail needs JavaScript; the records page does not." } }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_events_are_those_of_the_topic() {
        let text = page("a/b").rest.into_string();
        assert!(text.contains("/v1/topics/a%2Fb/events"), "{text}");
    }
}

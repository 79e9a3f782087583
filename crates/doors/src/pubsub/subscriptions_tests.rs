//! Pages of a long list of subscriptions.

use std::cell::Cell;

use tokio::runtime::Handle;

use super::super::names::Names;
use super::*;

/// Pages together are the list, and each looks only at the subscriptions that it returns, and at the next.
#[tokio::test]
async fn pages_look_at_few_of_many_subscriptions() {
    const MANY: usize = 600;
    let broker = Broker::start(broker::Settings::default(), &[Handle::current()]).expect("started");
    broker.create_topic("orders", engine::TopicSettings::default()).await.expect("created");
    let names = Names::new("p".into());
    let next = |from| names_from(&broker, from);
    let name = |project: &str, id: String| Name { kind: Kind::Subscription, project: project.into(), id };
    let mut expected = Vec::new();
    for number in 0..MANY {
        let of_default = name("p", format!("s{number:03}"));
        let of_other = name("other", format!("o{number:03}"));
        // Every fourth has no queue, and every twelfth still has both.
        for name in [&of_default, &of_other] {
            let inner = names.inner(name);
            if number % 4 == 0 {
                broker.documents.put(WITHOUT_QUEUE, &inner, Some(Bytes::new())).await.expect("stored");
            }
            if number % 4 != 0 || number % 12 == 0 {
                let topic = Some(TopicName::parse("orders").expect("valid"));
                let queue = NewQueue { topic, ..NewQueue::new(QueueName::parse(&inner).expect("valid")) };
                broker.queues.create(queue).await.expect("created");
            }
        }
        expected.push(of_default);
    }
    for (project, count, size) in [("p", MANY, 7), ("other", MANY, 7), ("p", MANY, 500), ("none", 0, 7)] {
        let mut listed = Vec::new();
        let mut token = String::new();
        loop {
            let looked_at = Cell::new(0);
            let shows = |_: &str| {
                looked_at.set(looked_at.get() + 1);
                true
            };
            let wanted = Wanted { project, size, token: &token };
            let page = names_of_page(&names, Kind::Subscription, wanted, shows, &next).await.expect("a page");
            assert!(page.items.len() <= size && looked_at.get() <= size + 1, "{}", looked_at.get());
            listed.extend(page.items);
            token = page.next_page_token;
            if token.is_empty() {
                break;
            }
        }
        assert_eq!(listed.len(), count, "{project}");
        assert!(listed.iter().all(|name| name.project == project));
        if project == "p" {
            assert_eq!(listed, expected);
        }
    }
}

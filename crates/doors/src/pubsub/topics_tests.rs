//! Pages of a long list of topics.

use std::cell::Cell;

use tokio::runtime::Handle;

use super::super::names::Names;
use super::*;

/// Pages together are the list, and each looks only at the topics that it returns, and at the next.
#[tokio::test]
async fn pages_look_at_few_of_many_topics() {
    let broker = Broker::start(broker::Settings::default(), &[Handle::current()]).expect("started");
    let names = Names::new("p".into());
    let next = |from| ready(Ok(names_from(&broker, from)));
    let name = |project: &str, id: String| Name { kind: Kind::Topic, project: project.into(), id };
    let mut expected = Vec::new();
    for number in 0..200 {
        // The broker's name of some has an escape sequence.
        let of_default = name("p", format!("t{number:03}{}", if number % 2 == 0 { "~" } else { "" }));
        for name in [&of_default, &name("other", format!("o{number:03}"))] {
            broker.create_topic(&names.inner(name), TopicSettings::default()).await.expect("created");
        }
        expected.push(of_default);
    }
    // Its name is not the one that the broker would have for the resource.
    broker.create_topic("t_x5Fx", TopicSettings::default()).await.expect("created");
    expected.push(name("p", "t_x".into()));
    for (project, count) in [("p", expected.len()), ("other", 200), ("none", 0)] {
        let mut listed = Vec::new();
        let mut token = String::new();
        loop {
            let looked_at = Cell::new(0);
            let shows = |_: &str| {
                looked_at.set(looked_at.get() + 1);
                true
            };
            let wanted = Wanted { project, size: 7, token: &token };
            let page = names_of_page(&names, Kind::Topic, wanted, shows, &next).await.expect("a page");
            assert!(page.items.len() <= 7 && looked_at.get() <= 8, "{}", looked_at.get());
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
    for token in ["x", "projects/other/t1"] {
        let wanted = Wanted { project: "p", size: 7, token };
        assert!(names_of_page(&names, Kind::Topic, wanted, |_: &str| true, &next).await.is_err(), "{token}");
    }
}

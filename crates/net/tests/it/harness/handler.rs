//! Handler that executes the words of a request.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::stream::{LocalBoxStream, StreamExt, once, pending, unfold};
use net::service::{Body, Handler, Held, Peer, Reply, Spent, Standing};
use net::{Outbox, UnixPeer};

use super::framed::{Call, Framed, Response};
use super::{World, noise};

#[derive(Clone)]
pub struct Scripted(pub Arc<World>);

/// Guard that counts the open connections, with the description of its peer.
pub struct Connection(Arc<World>, String);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.connection_closed();
    }
}

pub struct Session {
    peer: String,
    outbox: Arc<Outbox>,
    standing: Rc<Cell<Standing>>,
    /// Gate of the pause that begins after this turn.
    pause: Option<String>,
    /// Name of the first request of this turn that others may join.
    joined: Option<String>,
}

type Later = LocalBoxStream<'static, Response>;
type Replied = Reply<Response, Later>;

fn text(text: impl Into<String>) -> Response {
    vec![Bytes::from(text.into())]
}

/// Guard that notes the beginning of the work, and its end without a waiter.
struct Begun(Arc<World>, String);

impl Begun {
    fn new(world: &Arc<World>, name: &str) -> Self {
        world.note(format!("begin {name}"));
        Self(world.clone(), name.to_owned())
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        self.0.note(format!("end {}", self.1));
    }
}

/// Answers with its name once the gate with that name is open.
fn gated(world: &Arc<World>, name: &str) -> Later {
    let begun = Begun::new(world, name);
    once(async move {
        begun.0.pass(&begun.1).await;
        text(&*begun.1)
    })
    .boxed_local()
}

/// Returns `count` answers, each when the gate is passed.
fn several(world: &Arc<World>, name: &str, count: usize) -> Later {
    unfold((Begun::new(world, name), 0), move |(begun, i)| async move {
        if i == count {
            return None;
        }
        begun.0.pass(&begun.1).await;
        Some((text(format!("{} {i}", begun.1)), (begun, i + 1)))
    })
    .boxed_local()
}

fn number(word: Option<&str>) -> usize {
    word.and_then(|word| word.parse().ok()).expect("a number")
}

impl<const IN_ORDER: bool> Handler<Framed<IN_ORDER>> for Scripted {
    type Connection = Connection;
    type Session = Session;
    type Later = Later;

    fn connect(&self, peer: &Rc<Peer>) -> Connection {
        if self.0.noted("refuse to connect") > 0 {
            panic!("told to panic");
        }
        self.0.connection_opened();
        let owner = if peer.process.is_some_and(UnixPeer::is_owner) { " its owner" } else { "" };
        let local = peer.local.map(|local| format!(" at {local}")).unwrap_or_default();
        Connection(self.0.clone(), format!("{:?} {peer}{local}{owner}", peer.transport))
    }

    fn open(&self, connection: &Rc<Connection>, outbox: &Arc<Outbox>) -> Session {
        if self.0.noted("refuse to open") > 0 {
            panic!("told to panic");
        }
        self.0.keep_outbox(outbox);
        let peer = connection.1.clone();
        Session {
            peer,
            outbox: outbox.clone(),
            standing: Rc::new(Cell::new(Standing::Open)),
            pause: None,
            joined: None,
        }
    }

    fn standing(&self, session: &Session) -> Standing {
        session.standing.get()
    }

    fn pause(&self, session: &mut Session, spent: Spent) -> Option<Held> {
        let begun = Begun::new(&self.0, &session.pause.take()?);
        self.0.note(format!("spent {} requests", spent.requests));
        assert!(spent.bytes_read > 0, "{spent:?}");
        Some(Box::pin(async move { begun.0.pass(&begun.1).await }))
    }

    fn is_joinable(&self, session: &Session) -> bool {
        session.joined.is_some()
    }

    fn may_join(&self, _session: &Session, request: &Call<'_>) -> bool {
        request.words.starts_with(b"join ")
    }

    fn settle(&self, session: &mut Session) {
        if let Some(first) = session.joined.take() {
            self.0.note(format!("joined {first}"));
        }
    }

    fn call(&self, session: &mut Session, request: Call<'_>) -> Replied {
        if let Some(kept) = request.kept {
            let how = Bytes::from_static(if kept.is_copied { b"copied:" } else { b"taken:" });
            return Reply::Now(vec![how, kept.words.freeze()]);
        }
        let world = &self.0;
        let words = std::str::from_utf8(request.words).expect("a text");
        let mut each = words.split(' ');
        let verb = each.next().unwrap_or_default();
        let mut next = || each.next();
        match verb {
            "who" => Reply::Now(text(&*session.peer)),
            "echo" => Reply::Now(vec![Bytes::copy_from_slice(&request.words[5..])]),
            // `bytes` bytes in `pieces` pieces.
            "noise" => {
                let seed = number(next());
                let bytes = number(next());
                let pieces = number(next());
                let whole = Bytes::from(noise(seed as u64, bytes));
                let piece = |i| whole.slice(bytes * i / pieces..bytes * (i + 1) / pieces);
                Reply::Now((0..pieces).map(piece).collect())
            }
            "wait" => Reply::Later(gated(world, next().expect("a name"))),
            "alone" => Reply::Alone(gated(world, next().expect("a name"))),
            // Begins only once the gate was passed.
            "again" => {
                let name = next().expect("a name");
                world.note(format!("tried {name}"));
                if world.noted(&format!("tried {name}")) > 1 {
                    return Reply::Now(text(name));
                }
                let begun = Begun::new(world, name);
                Reply::Again(Box::pin(async move { begun.0.pass(&begun.1).await }))
            }
            "join" => {
                let name = next().expect("a name");
                session.joined.get_or_insert_with(|| name.to_owned());
                Reply::Alone(gated(world, name))
            }
            "pause" => {
                session.pause = Some(next().expect("a name").to_owned());
                Reply::Now(text("paused"))
            }
            "last" => Reply::Last(text("bye")),
            // The peer still has to identify itself.
            "opening" => {
                session.standing.set(Standing::Opening);
                Reply::Now(text("who"))
            }
            // Alone, and then the stream is over, or open.
            "over" | "open" => {
                let standing = session.standing.clone();
                let name = next().expect("a name");
                let to = if verb == "over" { Standing::Over } else { Standing::Open };
                Reply::Alone(gated(world, name).inspect(move |_| standing.set(to)).boxed_local())
            }
            "several" => Reply::Later(several(world, next().expect("a name"), number(next()))),
            "nothing" => Reply::Later(futures_util::stream::empty().boxed_local()),
            "never" => {
                let begun = Begun::new(world, "never");
                Reply::Later(
                    pending()
                        .map(move |response: Response| {
                            let _ = &begun;
                            response
                        })
                        .boxed_local(),
                )
            }
            // `count` answers of `bytes` bytes, as fast as they are accepted.
            "flood" | "flood-quietly" => {
                let name = next().expect("a name").to_owned();
                let count = number(next());
                let bytes = number(next());
                let begun = Begun::new(world, &name);
                let is_noted = verb == "flood";
                let answers = futures_util::stream::iter(0..count).map(move |i| {
                    if is_noted {
                        begun.0.note(begun.1.clone());
                    }
                    vec![Bytes::from(noise(i as u64, bytes))]
                });
                Reply::Later(answers.boxed_local())
            }
            // Uses the processor for a while.
            "stall" => {
                let until = Instant::now() + Duration::from_millis(2);
                while Instant::now() < until {
                    std::hint::spin_loop();
                }
                world.note(next().expect("a name"));
                Reply::Now(text("stalled"))
            }
            // Notes how many streams have answers that are not written.
            "count-unwritten" => {
                let count = world.outboxes().iter().filter(|outbox| !outbox.is_empty()).count();
                world.note(count.to_string());
                Reply::Now(text("counted"))
            }
            // Blocks the thread until this is noted.
            "stop" => {
                let name = next().expect("a name");
                world.note("stopped");
                while world.noted(name) == 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Reply::Now(text("stopped"))
            }
            "panic" => panic!("told to panic"),
            "panic-later" => Reply::Later(once(async { panic!("told to panic") }).boxed_local()),
            other => panic!("the script has no {other}"),
        }
    }

    fn accept_one_way(&self, session: &mut Session, message: &[u8]) -> Option<Held> {
        let words = std::str::from_utf8(message).expect("a text");
        let (verb, name) = words.split_once(' ').unwrap_or((words, ""));
        match verb {
            "ignore" => {}
            "note" => self.0.note(name),
            "hold" => {
                let begun = Begun::new(&self.0, name);
                return Some(Box::pin(async move {
                    begun.0.pass(&begun.1).await;
                    begun.0.note(format!("passed {}", begun.1));
                }));
            }
            "push" => {
                session.outbox.push([super::framed::push(0, name.as_bytes())]);
                session.outbox.flush();
            }
            other => panic!("the script has no {other}"),
        }
        None
    }

    fn call_streamed(&self, session: &mut Session, request: Call<'_>, mut body: Body) -> Replied {
        let world = self.0.clone();
        let words = std::str::from_utf8(request.words).expect("a text");
        let (verb, name) = words.split_once(' ').map_or((words, ""), |(verb, name)| (verb, name));
        let begun = Begun::new(&world, name);
        match verb {
            // The whole body is returned.
            "collect" => Reply::Later(
                once(async move {
                    let mut all = Vec::new();
                    while let Some(piece) = body.next().await {
                        match piece {
                            Ok(piece) => all.push(piece),
                            Err(fault) => {
                                begun.0.note(format!("cut {}", begun.1));
                                return text(format!("cut: {fault}"));
                            }
                        }
                    }
                    all
                })
                .boxed_local(),
            ),
            // Each piece is taken when the gate is passed, and its length is noted.
            "slowly" => Reply::Later(
                once(async move {
                    let mut bytes = 0;
                    loop {
                        begun.0.pass(&begun.1).await;
                        match body.next().await {
                            Some(Ok(piece)) => bytes += piece.len(),
                            Some(Err(fault)) => return text(format!("cut: {fault}")),
                            None => return text(bytes.to_string()),
                        }
                        begun.0.note(format!("took {}", begun.1));
                    }
                })
                .boxed_local(),
            ),
            // The body is kept unread until the gate opens, and then dropped.
            "keep" => Reply::Later(
                once(async move {
                    begun.0.pass(&begun.1).await;
                    drop(body);
                    text("dropped")
                })
                .boxed_local(),
            ),
            "drop" => Reply::Now(text("dropped")),
            _ => self.call_any(session, request),
        }
    }

    fn drain(&self, session: &mut Session) -> Option<Held> {
        session.outbox.push([super::framed::push(0, b"going away")]);
        session.outbox.flush();
        self.0.note("drain");
        None
    }
}

impl Scripted {
    fn call_any(&self, session: &mut Session, request: Call<'_>) -> Replied {
        <Self as Handler<Framed<true>>>::call(self, session, request)
    }
}

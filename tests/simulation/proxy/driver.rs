//! Moves the bytes of one session, as `net` does.
//!
//! Owns both connections of the session. Must never decide anything about a write.

use super::Proxy;
use super::host::Hosting;
use crate::coverage::{Event, Messages};
use crate::pipe::{Reader, Writer, receive};
use crate::server::Connection;
use crate::world::moment;
use bytes::BytesMut;
use fencegate::state::database::PREPARE_LIMIT;
use fencegate_fence::session::SessionFence;
use fencegate_session::parameter::{Parameter, ParameterValue};
use fencegate_session::path::Path;
use fencegate_session::rejection::cut_off;
use fencegate_session::{Done, End, Session, Settings, Side, Step};
use fencegate_statement::Lexing;
use fencegate_wire::error::{ErrorText, field};
use fencegate_wire::frame::body;
use fencegate_wire::message::{Status, put_ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// A session that takes more turns than this while the clock stands still is in a busy loop.
const MOST_TURNS: u32 = 10_000;

/// One session, from its login to its end.
pub(super) async fn serve(
    proxy: Arc<Proxy>,
    from_client: Reader,
    to_client: Writer,
    (value, number): (Option<String>, u64),
    pid: Arc<AtomicI32>,
) {
    let mut dice = proxy.world.dice();
    proxy.gate.runs().await;
    moment(&mut dice).await;
    let Connection { identity, writer, reader } =
        proxy.world.server.connect(&proxy.world, &proxy.name, value.clone(), number);
    pid.store(identity.pid, Ordering::Relaxed);
    proxy.world.say(|| format!("{} begins a session in process {} with {value:?}", proxy.name, identity.pid));
    moment(&mut dice).await;
    proxy.downstream.fence.note_login();
    let downstream = proxy.downstream.clone();
    timeout(PREPARE_LIMIT, tokio::spawn(async move { downstream.prepare().await })).await.ok();
    let fence = Arc::new(SessionFence::new(Ok(identity)));
    let registration = proxy.downstream.fence.register(fence.clone());
    proxy.downstream.session_registered();
    let mut greeting = BytesMut::new();
    put_ready(&mut greeting, Status::Idle);
    let started = Settings {
        replicates: false,
        temporary: None,
        parameter: Parameter::new(ParameterValue::read(value.as_deref())),
        path: Path::new(Some("public"), proxy.world.plan.reports_path),
        lexing: Lexing::USUAL,
        reported: None,
    };
    let host = Hosting::new(&proxy, fence);
    let client = Side::new(BytesMut::new(), false, greeting);
    let session = Session::new(host, client, Side::default(), started, now());
    let driver = Driver {
        session,
        from_client,
        to_client,
        reader,
        writer: Some(writer),
        performing: None,
        turns: (now(), 0),
        messages: Default::default(),
    };
    Box::new(driver).run().await;
    drop(registration);
}

struct Driver {
    session: Session<Hosting>,
    from_client: Reader,
    to_client: Writer,
    reader: Reader,
    /// None once the server has received the end of the input.
    writer: Option<Writer>,
    performing: Option<(JoinHandle<Done>, Arc<()>)>,
    /// Number of turns since this moment, at the same time.
    turns: (std::time::Instant, u32),
    /// From the client and from the server.
    messages: [Messages; 2],
}

impl Driver {
    async fn run(mut self: Box<Self>) {
        let end = loop {
            if let Err(end) = self.turn().await {
                break end;
            }
        };
        if self.session.server.ended {
            self.session.definitions_ended();
        }
        self.last_words(end).await;
    }

    async fn turn(&mut self) -> Result<(), End> {
        self.session.host.proxy.gate.runs().await;
        let now = now();
        self.turns = if self.turns.0 == now { (now, self.turns.1 + 1) } else { (now, 0) };
        if self.turns.1 > MOST_TURNS {
            self.session.host.proxy.world.judge.object("a session spins".to_owned());
            return Err(End::Server);
        }
        let step = loop {
            match self.session.step(now)? {
                Step::GoOn => {}
                step => break step,
            }
        };
        if let Step::Do(task) = step {
            self.performing = Some(self.session.host.perform(task));
        }
        self.flush();
        let is_held_back = self.session.is_held_back();
        if self.session.is_terminating() || self.session.client.ended && !is_held_back {
            self.writer = None;
        }
        let keeps_room = self.session.keeps_room();
        let wakes_at = self.session.wakes_at();
        let Driver { session, from_client, reader, performing, messages: [asked, answered], .. } = self;
        let world = session.host.proxy.world.clone();
        let situation = session.situation();
        let done = async {
            match performing {
                Some((task, _)) => task.await.unwrap(),
                None => std::future::pending().await,
            }
        };
        let room_is_looked_at = async {
            match keeps_room {
                true => sleep(Duration::from_millis(100)).await,
                false => std::future::pending().await,
            }
        };
        let wakes = async {
            match wakes_at {
                Some(at) => sleep_until(Instant::from_std(at)).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            done = done => {
                *performing = None;
                world.coverage.count(situation, Some(Event::of_task(&done)));
                session.done(done);
            }
            () = session.fence().revoked.notified() => {
                world.coverage.count(situation, Some(Event::Revoked));
                session.revoked();
            }
            read = reader.read(), if !session.server.ended => {
                world.coverage.count(situation, answered.read(read.as_deref()).map(Event::of_server));
                match read {
                    Some(bytes) => receive(&mut session.server.input, bytes),
                    None => session.server.ended = true,
                }
            }
            read = from_client.read(), if !session.client.ended => {
                world.coverage.count(situation, asked.read(read.as_deref()).map(Event::of_client));
                match read {
                    Some(bytes) => receive(&mut session.client.input, bytes),
                    None => session.client.ended = true,
                }
            }
            () = room_is_looked_at => {}
            () = wakes => world.coverage.count(situation, Some(Event::Wakes)),
        }
        Ok(())
    }

    fn flush(&mut self) {
        self.to_client.write_all_of(&mut self.session.client.output);
        match &self.writer {
            Some(writer) => writer.write_all_of(&mut self.session.server.output),
            None => self.session.server.output.clear(),
        }
    }

    /// Sends the last error, like `net::term`.
    async fn last_words(mut self: Box<Self>, end: End) {
        match end {
            End::Server if !self.session.is_terminating() => self.lost_server().await,
            End::ClientFault(why) => {
                let text = ErrorText::new("08P01", why.to_string());
                self.session.send_last(&text, &End::Client);
            }
            End::ServerFault(why) => {
                let world = &self.session.host.proxy.world;
                // A cancel request of the client has met a question of the proxy.
                match world.plan.unruly > 0 && why.starts_with("a query of the proxy was canceled") {
                    true => world.judge.see("question ahead canceled"),
                    false => world.judge.object(format!("the server broke the protocol: {why}")),
                }
                let text = ErrorText::new("08P01", why);
                self.session.send_last(&text, &End::Server);
            }
            _ => {}
        }
        self.flush();
    }

    async fn lost_server(&mut self) {
        let said = self.session.last_error();
        let may_be_cut_off = said.as_ref().is_none_or(|error| field(body(error), b'C') == Some(b"57P01"));
        let database = self.session.host.proxy.downstream.fence.clone();
        if may_be_cut_off && let Some(by) = database.cut_off_by(self.session.fence()).await {
            let outcome = self.session.cut_off();
            let text = cut_off(&by.resource, by.presented, by.highest, outcome);
            self.session.send_last(&text, &End::CutOff(by));
        } else if let Some(said) = said {
            self.session.client.output.extend_from_slice(&said);
        }
    }
}

fn now() -> std::time::Instant {
    Instant::now().into_std()
}

use super::*;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::time::Duration;
use tokio::runtime::Runtime;

const LIMIT: Duration = Duration::from_secs(20);

/// A runtime whose end does not wait for the relays.
struct Running(Option<Runtime>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.take().unwrap().shutdown_background();
    }
}

/// A relay, and the runtime that it uses.
fn relay() -> (Relay, Running) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    (Relay::start(runtime.handle()).unwrap(), Running(Some(runtime)))
}

/// A socket, and the descriptor of its other end.
fn pair() -> (UnixStream, OwnedFd) {
    let (near, far) = UnixStream::pair().unwrap();
    far.set_nonblocking(true).unwrap();
    near.set_read_timeout(Some(LIMIT)).unwrap();
    near.set_write_timeout(Some(LIMIT)).unwrap();
    (near, far.into())
}

/// Sends back all bytes, until the end.
async fn echo(socket: OwnedFd) {
    let socket = register(socket).unwrap();
    let mut bytes = bytes::BytesMut::new();
    // Small and large reads take different paths.
    for at_once in [1024, 32 * 1024].into_iter().cycle() {
        let read = poll_fn(|_| socket.poll_fill(&mut bytes, at_once)).await.unwrap();
        if read == 0 {
            break;
        }
        while !bytes.is_empty() {
            let written = poll_fn(|_| socket.poll_send(&bytes)).await.unwrap();
            drop(bytes.split_to(written));
        }
    }
}

fn is_echoed(near: &mut UnixStream, bytes: &[u8]) {
    near.set_read_timeout(Some(LIMIT)).unwrap();
    let mut writer = near.try_clone().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || writer.write_all(bytes).unwrap());
        let mut back = vec![0; bytes.len()];
        near.read_exact(&mut back).unwrap();
        assert!(back == bytes);
    });
}

#[test]
fn sockets_that_fill_up_go_on() {
    let (relay, _runtime) = relay();
    let mut near: Vec<UnixStream> = Vec::new();
    for _ in 0..3 {
        let (one, far) = pair();
        relay.begin(echo(far));
        near.push(one);
    }
    let much: Vec<u8> = (0..2_000_000_u32).map(|number| number.to_le_bytes()[1]).collect();
    for bytes in [&b"a"[..], &much, &much[..1024], &much[..1025], b"z"] {
        near.iter_mut().for_each(|near| is_echoed(near, bytes));
    }
}

#[test]
fn the_relay_waits_for_writes_only_while_one_is_blocked() {
    let (relay, _runtime) = relay();
    let (tell, told) = mpsc::channel();
    let (mut near, far) = pair();
    relay.begin(async move {
        let socket = register(far).unwrap();
        let is_awaited = || socket.readiness.has(socket::WRITES_TOO);
        let mut states = vec![is_awaited()];
        let mut filled = 0;
        while let Poll::Ready(written) = socket.poll_send(&[0; 4096]) {
            filled += written.unwrap();
        }
        states.push(is_awaited());
        tell.send((filled, states)).unwrap();
        filled = poll_fn(|_| socket.poll_send(b"z")).await.unwrap();
        tell.send((filled, vec![is_awaited()])).unwrap();
    });
    let (filled, states) = told.recv_timeout(LIMIT).unwrap();
    assert_eq!(states, [false, true]);
    near.read_exact(&mut vec![0; filled]).unwrap();
    assert_eq!(told.recv_timeout(LIMIT), Ok((1, vec![false])));
}

#[test]
fn a_write_that_would_block_after_its_session_has_blocked_goes_on() {
    let (relay, _runtime) = relay();
    let much: Vec<u8> = vec![1; 2_000_000];
    let (near, far) = pair();
    relay.begin(async move {
        let socket = register(far).unwrap();
        without_delaying_others(|| ());
        let mut rest = &much[..];
        while !rest.is_empty() {
            rest = &rest[poll_fn(|_| socket.poll_send(rest)).await.unwrap()..];
        }
    });
    let mut bytes = Vec::new();
    (&near).read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes.len(), 2_000_000);
}

#[test]
fn a_place_is_used_again() {
    let (relay, _runtime) = relay();
    for _ in 0..3 {
        let (mut near, far) = pair();
        let (ended, ends) = mpsc::channel();
        relay.begin(async move {
            echo(far).await;
            ended.send(()).unwrap();
        });
        is_echoed(&mut near, b"bytes");
        drop(near);
        ends.recv_timeout(LIMIT).unwrap();
    }
}

#[test]
fn a_panic_ends_one_session() {
    let (relay, _runtime) = relay();
    relay.begin(async { panic!("meant") });
    let (mut near, far) = pair();
    relay.begin(echo(far));
    is_echoed(&mut near, b"bytes");
}

#[test]
fn a_session_that_blocks_delays_no_other() {
    let (relay, _runtime) = relay();
    let (go_on, goes_on) = mpsc::channel();
    let (tell, told) = mpsc::channel();
    let (wake, woken) = tokio::sync::oneshot::channel();
    relay.begin(async move {
        without_delaying_others(|| goes_on.recv_timeout(LIMIT).unwrap());
        woken.await.unwrap();
        tell.send(()).unwrap();
    });
    let (mut near, far) = pair();
    relay.begin(echo(far));
    is_echoed(&mut near, b"while the other blocks");
    go_on.send(()).unwrap();
    is_echoed(&mut near, b"after it");
    wake.send(()).unwrap();
    told.recv_timeout(LIMIT).unwrap();
}

#[test]
fn a_session_that_yields_lets_others_go_first() {
    let (relay, _runtime) = relay();
    let (tell, told) = mpsc::channel();
    let (mut near, far) = pair();
    let (stop, mut stopped) = tokio::sync::oneshot::channel::<()>();
    relay.begin(async move {
        while stopped.try_recv().is_err() {
            yield_now().await;
        }
        tell.send(()).unwrap();
    });
    relay.begin(echo(far));
    is_echoed(&mut near, b"beside it");
    stop.send(()).unwrap();
    told.recv_timeout(LIMIT).unwrap();
}

#[test]
fn a_wake_up_counts_until_the_session_takes_it() {
    let (relay, _runtime) = relay();
    let (tell, told) = mpsc::channel();
    let (wake, mut woken) = tokio::sync::oneshot::channel();
    let (mut near, far) = pair();
    relay.begin(async move {
        let socket = register(far).unwrap();
        assert!(take_woken(), "a session looks at everything when it begins");
        let mut bytes = bytes::BytesMut::new();
        poll_fn(|_| socket.poll_fill(&mut bytes, 1024)).await.unwrap();
        poll_fn(|context| {
            let poll = Pin::new(&mut woken).poll(context);
            if poll.is_pending() {
                tell.send(take_woken()).unwrap();
            }
            poll
        })
        .await
        .unwrap();
        yield_now().await;
        tell.send(take_woken()).unwrap();
        tell.send(take_woken()).unwrap();
    });
    near.write_all(b"bytes").unwrap();
    assert!(!told.recv_timeout(LIMIT).unwrap(), "an event of a socket is no wake-up");
    wake.send(()).unwrap();
    assert!(told.recv_timeout(LIMIT).unwrap(), "in a later poll");
    assert!(!told.recv_timeout(LIMIT).unwrap(), "once");
}

#[test]
fn a_wake_up_before_a_session_blocks_counts_when_it_returns() {
    let (relay, _runtime) = relay();
    let (tell, told) = mpsc::channel();
    let (wake, woken) = tokio::sync::oneshot::channel();
    relay.begin(async move {
        take_woken();
        woken.await.unwrap();
        without_delaying_others(|| ());
        let mut is_first = true;
        poll_fn(|_| if std::mem::take(&mut is_first) { Poll::Pending } else { Poll::Ready(()) }).await;
        tell.send(take_woken()).unwrap();
    });
    // The first poll of the session is over once a later session is served.
    let (mut near, far) = pair();
    relay.begin(echo(far));
    is_echoed(&mut near, b"bytes");
    wake.send(()).unwrap();
    assert!(told.recv_timeout(LIMIT).unwrap());
}

#[test]
fn an_event_of_an_earlier_session_in_the_same_place_does_no_harm() {
    let (relay, _runtime) = relay();
    let (mut near, far) = pair();
    // A child process also has such a copy until it executes its program. The system continues to report events.
    let copy = far.try_clone().unwrap();
    let (ended, ends) = mpsc::channel();
    relay.begin(async move {
        drop(register(far).unwrap());
        ended.send(()).unwrap();
    });
    ends.recv_timeout(LIMIT).unwrap();
    let (mut later, far) = pair();
    relay.begin(echo(far));
    is_echoed(&mut later, b"before");
    near.write_all(b"bytes").unwrap();
    drop(near);
    is_echoed(&mut later, b"after");
    is_echoed(&mut later, b"after that");
    drop(copy);
}

#[test]
fn an_end_that_arrives_with_the_last_input_is_read() {
    let (relay, _runtime) = relay();
    let (go_on, goes_on) = tokio::sync::oneshot::channel();
    let (tell, told) = mpsc::channel();
    let (mut near, far) = pair();
    relay.begin(async move {
        let socket = register(far).unwrap();
        goes_on.await.unwrap();
        let mut bytes = bytes::BytesMut::new();
        while poll_fn(|_| socket.poll_fill(&mut bytes, 1024)).await.unwrap() > 0 {}
        tell.send(bytes).unwrap();
    });
    near.write_all(b"bytes").unwrap();
    drop(near);
    // The relay has noted the events of the first session when it handles those of another one.
    let (mut other, far) = pair();
    relay.begin(echo(far));
    is_echoed(&mut other, b"bytes");
    go_on.send(()).unwrap();
    assert_eq!(told.recv_timeout(LIMIT).unwrap(), &b"bytes"[..]);
}

#[test]
fn an_event_during_an_attempt_of_a_session_that_has_blocked_is_not_lost() {
    let (relay, _runtime) = relay();
    let (attempt, attempted) = mpsc::channel();
    let (fail, fails) = mpsc::channel();
    let (tell, told) = mpsc::channel();
    let (mut near, far) = pair();
    relay.begin(async move {
        let socket = register(far).unwrap();
        without_delaying_others(|| ());
        let mut bytes = bytes::BytesMut::new();
        let mut is_first = true;
        let read = poll_fn(move |_| match std::mem::take(&mut is_first) {
            true => socket.readiness.poll(socket::READABLE, || {
                attempt.send(()).unwrap();
                fails.recv_timeout(LIMIT).unwrap();
                Err(rustix::io::Errno::AGAIN)
            }),
            false => socket.poll_fill(&mut bytes, 1024),
        });
        tell.send(read.await.unwrap()).unwrap();
    });
    attempted.recv_timeout(LIMIT).unwrap();
    near.write_all(b"bytes").unwrap();
    let (mut other, far) = pair();
    relay.begin(echo(far));
    is_echoed(&mut other, b"bytes");
    fail.send(()).unwrap();
    assert_eq!(told.recv_timeout(LIMIT), Ok(5));
}

#[test]
fn a_panic_after_blocking_ends_one_session() {
    let (relay, _runtime) = relay();
    for _ in 0..3 {
        relay.begin(async { without_delaying_others(|| panic!("meant")) });
        let (mut near, far) = pair();
        relay.begin(echo(far));
        is_echoed(&mut near, b"bytes");
    }
}

/// Panics when it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("meant");
    }
}

#[test]
fn a_panic_of_a_destructor_ends_one_session() {
    let (relay, _runtime) = relay();
    let bomb = Bomb;
    let (polled, is_polled) = mpsc::channel();
    let mut has_panicked = false;
    relay.begin(poll_fn(move |_| {
        let _ = &bomb;
        polled.send(()).unwrap();
        assert!(std::mem::replace(&mut has_panicked, true), "meant");
        Poll::Ready(())
    }));
    is_polled.recv_timeout(LIMIT).unwrap();
    let (mut near, far) = pair();
    relay.begin(echo(far));
    is_echoed(&mut near, b"bytes");
}

#[test]
fn a_wake_up_during_a_poll_leads_to_another_poll() {
    let (relay, _runtime) = relay();
    let (tell, told) = mpsc::channel();
    let mut polls = 0;
    relay.begin(poll_fn(move |context| {
        polls += 1;
        let waker = context.waker().clone();
        std::thread::spawn(move || waker.wake()).join().unwrap();
        tell.send(polls).unwrap();
        if polls < 4 { Poll::Pending } else { Poll::Ready(()) }
    }));
    for polls in 1..=4 {
        assert_eq!(told.recv_timeout(LIMIT), Ok(polls));
    }
}

#[test]
fn a_session_is_not_polled_for_what_it_knows() {
    let (relay, _runtime) = relay();
    let (tell, told) = mpsc::channel();
    let (mut near, far) = pair();
    let mut socket = None;
    let mut far = Some(far);
    relay.begin(poll_fn(move |_| {
        if let Some(far) = far.take() {
            socket = Some(register(far).unwrap());
        }
        tell.send(socket.as_ref().unwrap().readiness.is_readable()).unwrap();
        Poll::<()>::Pending
    }));
    assert_eq!(told.recv_timeout(LIMIT), Ok(true));
    // The relay handles these events before those of another session.
    near.write_all(b"bytes").unwrap();
    let (mut other, far) = pair();
    relay.begin(echo(far));
    is_echoed(&mut other, b"bytes");
    assert_eq!(told.try_recv(), Err(mpsc::TryRecvError::Empty), "it knew that it could read");
    drop(near);
    is_echoed(&mut other, b"bytes");
    assert_eq!(told.recv_timeout(LIMIT), Ok(true), "the end is new");
}

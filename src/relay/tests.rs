use super::*;
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::time::Duration;
use tokio::runtime::Runtime;

const LIMIT: Duration = Duration::from_secs(20);

/// A relay, and the runtime that it uses.
fn relay() -> (Relay, Runtime) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    (Relay::start(runtime.handle()).unwrap(), runtime)
}

/// A socket, and the descriptor of its other end.
fn pair() -> (UnixStream, OwnedFd) {
    let (near, far) = UnixStream::pair().unwrap();
    far.set_nonblocking(true).unwrap();
    (near, far.into())
}

/// Sends back all bytes, until the end.
async fn echo(socket: OwnedFd) {
    let socket = register(socket).unwrap();
    let mut bytes = bytes::BytesMut::new();
    // Each size of a read has a way of its own.
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
    use std::io::{Read, Write};
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
    let (relay, runtime) = relay();
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
    runtime.shutdown_background();
}

#[test]
fn a_place_is_used_again() {
    let (relay, runtime) = relay();
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
    runtime.shutdown_background();
}

#[test]
fn a_panic_ends_one_session() {
    let (relay, runtime) = relay();
    relay.begin(async { panic!("meant") });
    let (mut near, far) = pair();
    relay.begin(echo(far));
    is_echoed(&mut near, b"bytes");
    runtime.shutdown_background();
}

#[test]
fn a_session_that_blocks_delays_no_other() {
    let (relay, runtime) = relay();
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
    runtime.shutdown_background();
}

#[test]
fn a_session_that_yields_lets_others_go_first() {
    let (relay, runtime) = relay();
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
    runtime.shutdown_background();
}

//! Syncs that are sent ahead of the data of a COPY or within it. The server ignores them.

use super::*;

/// A session whose server requests the data of a COPY. The client has sent a Sync ahead.
fn copying() -> Session<OneSession> {
    let mut session = session("");
    let copy = [parse("", "COPY free FROM STDIN"), bind("", ""), execute("")].concat();
    sends(&mut session, &[&copy[..], &sync()].concat());
    assert_eq!(session.server.output.split(), [&copy[..], &flush()].concat());
    assert!(session.is_held_back());
    let answer = [parsed(), is_bound(), copies_in()].concat();
    replies(&mut session, &answer);
    assert_eq!(session.client.output.split(), answer);
    assert!(session.server.output.is_empty() && session.client.input.is_empty() && !session.is_held_back());
    session
}

#[test]
fn a_copy_ends_with_its_data() {
    let mut session = copying();
    let data = [frame(frontend::COPY_DATA, b"1\n"), frame(frontend::COPY_DONE, b"")].concat();
    sends(&mut session, &[&data[..], &sync()].concat());
    assert_eq!(session.server.output.split(), [&data[..], &flush()].concat());
    replies(&mut session, &completes("COPY 1"));
    assert_eq!(session.server.output, sync());
    replies(&mut session, &ready());
    assert!(session.is_idle());
}

#[test]
fn a_sync_within_a_copy_is_sent_once_the_copy_has_failed() {
    let mut session = copying();
    replies(&mut session, &cancelled());
    assert_eq!(session.client.output.split(), cancelled());
    assert_eq!(session.server.output, sync());
    assert!(session.is_in_flight());
    replies(&mut session, &ready());
    assert_eq!(session.client.output, ready());
    assert!(session.is_idle());
}

#[test]
fn a_sync_followed_by_copy_data_is_not_sent() {
    let mut session = copying();
    let data = frame(frontend::COPY_DATA, b"1\n");
    sends(&mut session, &[&data[..], &sync(), &data].concat());
    assert_eq!(session.server.output.split(), data.repeat(2));
    replies(&mut session, &cancelled());
    assert!(session.server.output.is_empty());
    // Messages up to the next Sync are skipped.
    sends(&mut session, &[data, sync()].concat());
    assert_eq!(session.server.output, sync());
    replies(&mut session, &ready());
    assert!(session.is_idle());
}

/// Only the Sync after the end of the COPY is answered: the server has already ignored the earlier ones.
#[test]
fn a_copy_ended_at_once_is_answered_once() {
    for end in [frame(frontend::COPY_DONE, b""), frame(frontend::COPY_FAIL, b"no\0")] {
        let mut session = copying();
        sends(&mut session, &[&end[..], &sync()].concat());
        let sent = session.server.output.split();
        replies(&mut session, &cancelled());
        assert_eq!([&sent[..], &session.server.output.split()].concat(), [&end[..], &flush(), &sync()].concat());
        replies(&mut session, &ready());
        assert_eq!(session.client.output.split(), [cancelled(), ready()].concat());
        assert!(session.is_idle() && !session.is_in_flight());
    }
}

/// Rows, and the data of a COPY, are forwarded together as far as they have arrived whole.
#[test]
fn rows_are_forwarded_whole() {
    let mut session = session("");
    let query = query("SELECT * FROM free");
    sends(&mut session, &query);
    let rows: Vec<u8> = (1..4).flat_map(|length| frame(backend::DATA_ROW, &vec![b'r'; 20_000 * length])).collect();
    replies(&mut session, &rows[..50_000]);
    assert_eq!(session.client.output.split(), rows[..20_005], "the second row is incomplete");
    replies(&mut session, &rows[50_000..]);
    assert_eq!(session.client.output.split(), rows[20_005..]);
    let mut end = frame(backend::DATA_ROW, b"last").to_vec();
    end.extend_from_slice(&completes("SELECT 4"));
    end.extend_from_slice(&ready());
    replies(&mut session, &end);
    assert_eq!(session.client.output, end);
    assert!(session.is_idle());
}

//! Cost of single steps: parsing frames, the verdict on a text in each of three ways, and a whole transaction in the
//! session's state machine, without sockets.
//!
//! Usage: make micro   (about a minute)

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use bytes::{Buf, BufMut, BytesMut};
use criterion::{Criterion, Throughput};
mod transactions;

use fencegate_statement::{Cache, analyze};
use fencegate_wire::frame::{Header, put_frame};
use fencegate_wire::tag::backend;
use std::hint::black_box;
use std::time::Duration;
use transactions::{Does, LEXING, Transactions};

const TEXT: &str = "SELECT abalance FROM pgbench_accounts WHERE aid = 00001";
const ROWS: u64 = 1000;

fn main() {
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_secs(1))
        .measurement_time(Duration::from_secs(3))
        .without_plots()
        .configure_from_args();
    frames(&mut criterion);
    verdicts(&mut criterion);
    transactions(&mut criterion);
    criterion.final_summary();
}

/// Parses the headers of a thousand rows from a server.
fn frames(criterion: &mut Criterion) {
    let mut rows = BytesMut::new();
    for _ in 0..ROWS {
        put_frame(&mut rows, backend::DATA_ROW, |out| out.put_slice(&[0, 1, 0, 0, 0, 5, 48, 48, 48, 48, 49]));
    }
    let mut group = criterion.benchmark_group("frames");
    group.throughput(Throughput::Elements(ROWS));
    group.bench_function("1,000 rows", |bencher| {
        bencher.iter(|| {
            let mut rest = black_box(&rows[..]);
            while let Some(header) = Header::from_server(rest).unwrap() {
                rest.advance(header.frame());
            }
        });
    });
}

fn verdicts(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("verdict");
    let cache = Cache::default();
    let get = |text: &[u8]| assert!(cache.get(black_box(text), LEXING, false).is_some());
    // A string with an escape has no shape, so the cache stores the text itself.
    let with_escape = format!("{TEXT} AND filler = E'a\\tb'");
    group.bench_function("from the cache, by the text", |bencher| bencher.iter(|| get(with_escape.as_bytes())));
    let mut value = 0;
    group.bench_function("from the cache, by the text without its literals", |bencher| {
        let mut text = TEXT.as_bytes().to_vec();
        let digits = text.len() - 5;
        bencher.iter(|| {
            value = (value + 1) % 100_000;
            put_digits(&mut text[digits..], value);
            get(&text);
        });
    });
    group.bench_function("parsed", |bencher| bencher.iter(|| analyze(black_box(TEXT.as_bytes()), LEXING)));
}

fn transactions(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("transaction");
    let mut transactions = Transactions::new();
    for does in [Does::Read, Does::Write] {
        group.bench_function(format!("prepared, {does:?}"), |bencher| bencher.iter(|| transactions.prepared(does)));
        group.bench_function(format!("simple, {does:?}"), |bencher| bencher.iter(|| transactions.simple(does)));
    }
}

/// Writes the number in decimal, from the last digit on.
fn put_digits(digits: &mut [u8], mut value: u32) {
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (value % 10) as u8;
        value /= 10;
    }
}

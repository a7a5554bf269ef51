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
const WRITE: &str = "UPDATE pgbench_accounts SET abalance = 5 WHERE aid = ";
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

type MakeText = fn(usize) -> String;

fn verdicts(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("verdict");
    let cache = Cache::default();
    let get = |text: &[u8], with_rows| assert!(cache.get(black_box(text), LEXING, with_rows).is_some());
    group.bench_function("from the cache, by the text", |bencher| bencher.iter(|| get(b"SHOW work_mem", false)));
    // Each text is a new one. The time includes that for making it.
    let texts: [(&str, bool, MakeText); 4] = [
        ("another literal", false, |value| format!("{TEXT}{value}")),
        ("another comment", false, |value| format!("{TEXT} /* {value} */")),
        ("another list", false, |value| format!("{TEXT} AND bid IN ({}0)", "1, ".repeat(value % 50))),
        ("another literal, with rows", true, |value| format!("{WRITE}{value}")),
    ];
    for (name, with_rows, text) in texts {
        let mut value = 0;
        group.bench_function(format!("from the cache, {name}"), |bencher| {
            bencher.iter(|| {
                value += 1;
                get(text(value % 100_000).as_bytes(), with_rows);
            });
        });
    }
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

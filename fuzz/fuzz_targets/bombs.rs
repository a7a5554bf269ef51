//! Searches for texts that are expensive for their length, in CPU time or memory, on a thread that serves other
//! sessions.
//!
//! Keeps a text if it costs more per byte than all earlier ones, and reports a text that exceeds a bound. Random
//! changes of bytes find little, so the mutator repeats, nests and wraps pieces of the text.

#![no_main]

use fencegate_statement::{Cache, Encoding, Lexing, ServerEncoding, read_tokens};
use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// Bounds for one text on a thread that serves other sessions.
const LONGEST: Duration = Duration::from_millis(50);
const MOST_MEMORY: usize = 64 << 20;

/// Maximum time per byte for reading tokens, on a separate thread. A text of 16 MiB takes a second or two.
const LONGEST_BY_BYTE: Duration = Duration::from_nanos(200);

const USUAL: Lexing = Lexing {
    standard_conforming_strings: true,
    encoding: Encoding::Utf8,
    server: ServerEncoding::Utf8,
    release: Lexing::NEWEST,
};

/// libFuzzer keeps an input that increases any of these counters.
const COUNTERS: usize = 3 * 64;
#[unsafe(link_section = "__libfuzzer_extra_counters")]
static mut COUNTED: [u8; COUNTERS] = [0; COUNTERS];

struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// Counts only Rust allocations. Memory of the C parser is counted by the pages that it touches.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        PEAK.fetch_max(HELD.fetch_add(layout.size(), Relaxed) + layout.size(), Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Relaxed);
        unsafe { System.dealloc(pointer, layout) }
    }
}

fuzz_target!(|text: &[u8]| {
    let mut cost = measure(text);
    // Measure again, because the clock is imprecise on a busy machine.
    for _ in 0..4 {
        if cost.is_within(text.len()) {
            break;
        }
        let again = measure(text);
        cost = Cost { took: cost.took.min(again.took), tokens: cost.tokens.min(again.tokens), ..again };
    }
    assert!(cost.is_within(text.len()), "{cost:?} for {} bytes", text.len());
    let length = text.len().max(64);
    let costs = [cost.took.as_nanos() as usize, cost.memory, cost.tokens.as_nanos() as usize];
    for (kind, cost) in costs.into_iter().enumerate() {
        // Four buckets per power of two.
        let bucket = (f64::from((cost / length).max(1) as u32).log2() * 4.0) as usize;
        unsafe { COUNTED[kind * 64 + bucket.min(63)] = 1 };
    }
});

#[derive(Debug)]
struct Cost {
    took: Duration,
    memory: usize,
    tokens: Duration,
}

impl Cost {
    fn is_within(&self, length: usize) -> bool {
        let tokens = LONGEST_BY_BYTE * length as u32 + Duration::from_millis(1);
        self.took < LONGEST && self.memory < MOST_MEMORY && self.tokens < tokens
    }
}

fn measure(text: &[u8]) -> Cost {
    let (held, pages) = (HELD.load(Relaxed), pages());
    PEAK.store(held, Relaxed);
    let before = processor_time();
    let read = Cache::default().get(text, USUAL, true);
    let took = processor_time() - before;
    drop(read);
    let memory = PEAK.load(Relaxed).saturating_sub(held) + (self::pages() - pages) * 4096;
    let before = processor_time();
    drop(read_tokens(text, USUAL));
    Cost { took, memory, tokens: processor_time() - before }
}

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    let mut dice = Dice(u64::from(seed) | 1);
    if dice.roll(5) == 0 {
        return fuzzer_mutate(data, size, max_size);
    }
    let mutated = mutate(&data[..size], &mut dice);
    let length = mutated.len().min(max_size);
    data[..length].copy_from_slice(&mutated[..length]);
    length
});

/// Texts to put before and after a piece.
const AROUND: &[(&str, &str)] = &[
    ("(", ")"),
    ("ARRAY[", "]"),
    ("(SELECT ", ")"),
    ("CASE WHEN ", " THEN 1 END"),
    ("ROW(", ", 1)"),
    ("WITH w AS (", ") SELECT 1"),
    ("WITH RECURSIVE w AS (", " UNION ALL SELECT 1) SELECT 1"),
    ("UPDATE t SET (a, b) = (", ")"),
    ("INSERT INTO t (k, v) VALUES ", " ON CONFLICT (k) DO UPDATE SET (a, b) = (SELECT 1, 2)"),
    ("MERGE INTO t USING u ON t.a = u.a WHEN MATCHED THEN UPDATE SET (a, b) = (", ")"),
    ("SELECT 1 FROM ", " cross join a"),
    ("SELECT 1 FROM (", ") x FOR UPDATE OF x"),
    ("SELECT ", " UNION SELECT 1"),
    ("EXPLAIN ", ""),
    ("PREPARE p AS ", "; EXECUTE p"),
    ("CREATE SCHEMA s ", " CREATE TABLE t (a int)"),
    ("CREATE VIEW v AS ", ""),
    ("CREATE RULE r AS ON INSERT TO t DO ALSO (", "; DELETE FROM u)"),
    ("COPY (", ") TO STDOUT"),
    ("f(", ")"),
    ("f(x => ", ", VARIADIC y)"),
    ("CAST(", " AS int)"),
    ("NOT ", ""),
    ("- ", ""),
    ("a OPERATOR(pg_catalog.+) ", ""),
    ("JSON_OBJECT('a' : ", ")"),
    ("GROUPING SETS (", ", ())"),
    ("a IN (", ")"),
    ("a = ANY (ARRAY[", "])"),
    ("EXISTS (SELECT 1 WHERE ", ")"),
    ("x BETWEEN ", " AND 2"),
    ("sum(", ") OVER (PARTITION BY a ORDER BY b)"),
    ("", "::int"),
    ("", "[1]"),
    ("", ".a"),
    ("", " COLLATE x"),
    ("", " AT TIME ZONE 'x'"),
    ("", " IS NULL"),
    ("", " AND shard = 3"),
    ("", " OR shard IN (3, 4)"),
    ("", ", $1"),
    ("", "; "),
    ("/*", "*/"),
    ("E'\\", "'"),
    ("U&'\\0041", "'"),
    ("$q$", "$q$"),
];

fn mutate(text: &[u8], dice: &mut Dice) -> Vec<u8> {
    let (start, end) = piece(text, dice);
    let (before, piece, after) = (&text[..start], &text[start..end], &text[end..]);
    let times = 1 << dice.roll(9);
    let changed = match dice.roll(4) {
        // Repeat it, perhaps with a separator.
        0 => {
            let between: &[u8] = [&b" "[..], b", ", b"; ", b" AND ", b" + "][dice.roll(5)];
            [piece, between].concat().repeat(times)
        }
        // Nest it in itself.
        1 => {
            let at = self::piece(piece, dice).0;
            [piece[..at].repeat(times), piece.to_vec(), piece[at..].repeat(times)].concat()
        }
        // Nest it in other text.
        2 => {
            let (open, close) = AROUND[dice.roll(AROUND.len())];
            [open.repeat(times).as_bytes(), piece, close.repeat(times).as_bytes()].concat()
        }
        _ => {
            let (open, close) = AROUND[dice.roll(AROUND.len())];
            [open.as_bytes(), piece, close.as_bytes()].concat()
        }
    };
    [before, &changed, after].concat()
}

/// A random range between two word boundaries.
fn piece(text: &[u8], dice: &mut Dice) -> (usize, usize) {
    let is_border = |at: &usize| *at == 0 || !text[*at].is_ascii_alphanumeric() || !text[*at - 1].is_ascii_alphanumeric();
    let mut border = || (dice.roll(text.len() + 1)..text.len()).find(is_border).unwrap_or(text.len());
    let (one, other) = (border(), border());
    (one.min(other), one.max(other))
}

/// A random number generator with a seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % sides.max(1)
    }
}

fn processor_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Number of minor page faults of the thread so far.
fn pages() -> usize {
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) };
    usage.ru_minflt as usize
}

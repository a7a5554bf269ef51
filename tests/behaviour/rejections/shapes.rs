//! The messages that carry the rejected statement.

use crate::rejections::conversation::Step;
use crate::rejections::rejected::Rejected;
use crate::rejections::states::NOTE;
use crate::support::message::{
    bind_text, close_portal, close_statement, copy_data, copy_done, describe_portal, describe_statement, execute,
    flush, parse, query, sync, unnamed,
};

/// The parts of a shape.
pub struct Scene<'a> {
    /// Runs first, in the same string or pipeline.
    pub prefix: &'a [&'a str],
    /// The transaction has already failed.
    pub failed: bool,
    pub rejected: &'a Rejected,
    /// The rejected statement or its reference.
    pub statement: &'a str,
}

pub struct Shape {
    pub name: &'static str,
    pub steps: fn(&Scene) -> Vec<Step>,
    /// The statement is repeated after it has failed.
    pub repeats: bool,
    /// The statement runs in a transaction that the shape begins.
    pub begins: bool,
    /// The shape uses a portal of an earlier batch, which only a transaction block keeps.
    pub needs_block: bool,
}

const fn shape(name: &'static str, steps: fn(&Scene) -> Vec<Step>) -> Shape {
    Shape { name, steps, repeats: false, begins: false, needs_block: false }
}

pub const SHAPES: &[Shape] = &[
    shape("a string", |scene| vec![Step::Ready(scene.string(&scene.text()), 1)]),
    shape("the first of a string", |scene| {
        vec![Step::Ready(scene.string(&format!("{}; {NOTE}; SELECT 'not reached'", scene.text())), 1)]
    }),
    shape("in the middle of a string", |scene| {
        let text = format!(" {NOTE}; SELECT 'ran' ;\n-- a comment\n{} ; /* and */ {NOTE}", scene.text());
        vec![Step::Ready(scene.string(&text), 1)]
    }),
    shape("the last of a string", |scene| {
        let text = format!("{NOTE};;{NOTE} RETURNING 'ürgs'; {} -- the end", scene.text());
        vec![Step::Ready(scene.string(&text), 1)]
    }),
    Shape { begins: true, ..shape("a string with transactions of its own", string_with_transactions) },
    Shape { repeats: true, begins: true, ..shape("strings without waiting", strings_without_waiting) },
    shape("the extended protocol", |scene| vec![Step::Ready([scene.opening(), scene.unnamed(), sync()].concat(), 1)]),
    shape("with Describe", |scene| vec![Step::Ready([scene.opening(), scene.described(), sync()].concat(), 1)]),
    shape("with Flush before and after", with_flush),
    shape("with Flush after all of it", |scene| {
        let all = [scene.opening(), scene.unnamed(), flush()].concat();
        // Earlier messages are answered too, so only the error is awaited.
        vec![Step::Until(all, b'E'), Step::Ready([unnamed(NOTE, &[]), flush(), sync()].concat(), 1)]
    }),
    shape("the first of a pipeline", |scene| {
        vec![Step::Ready([scene.opening(), scene.described(), unnamed(NOTE, &[]), sync()].concat(), 1)]
    }),
    shape("in the middle of a pipeline", |scene| {
        let around = [parse("never", "SELECT 1", &[]), flush(), unnamed(NOTE, &[]), sync()].concat();
        vec![Step::Ready([scene.opening(), unnamed(NOTE, &[]), scene.described(), around].concat(), 1)]
    }),
    shape("the last of a pipeline", |scene| {
        let before = [unnamed(NOTE, &[]), parse("gone", "SELECT 1", &[])].concat();
        let after = [close_statement("gone"), sync()].concat();
        vec![Step::Ready([scene.opening(), before, scene.described(), sync()].concat(), 1), Step::Ready(after, 1)]
    }),
    Shape { repeats: true, ..shape("a pipeline of batches", batches) },
    shape("simple after extended without Sync", |scene| {
        let simple = scene.later_string(&scene.text());
        let messages = [scene.opening(), unnamed(NOTE, &[]), simple, unnamed(NOTE, &[]), sync()].concat();
        // The first error in the extended protocol also skips the string.
        vec![Step::Ready(messages, if scene.failed { 1 } else { 2 })]
    }),
    shape("extended before simple without Sync", |scene| {
        let rest = [query(NOTE), unnamed(NOTE, &[]), sync(), query("SELECT 2")].concat();
        vec![Step::Ready([scene.opening(), scene.described(), rest].concat(), 2)]
    }),
    Shape { repeats: true, ..shape("a named statement and portal", |scene| named(scene, "statement", "portal")) },
    Shape { repeats: true, ..shape("a named statement and the unnamed portal", |scene| named(scene, "statement", "")) },
    Shape { repeats: true, ..shape("the unnamed statement and a named portal", |scene| named(scene, "", "portal")) },
    Shape { needs_block: true, ..shape("Bind and Execute in later batches", later_batches) },
    shape("Execute with a row limit", |scene| {
        let run = [parse("", scene.statement, &[]), bind_text("p", "", &[]), execute("p", 1)].concat();
        let again = [scene.data(), execute("p", 1), close_portal("p"), sync()].concat();
        vec![Step::Ready([scene.opening(), scene.before(), run, again].concat(), 1)]
    }),
    shape("Close after it, twice", |scene| {
        let close = [close_portal("portal"), close_statement("statement"), sync()].concat();
        let run = [scene.opening(), scene.before(), scene.started("statement", "portal")].concat();
        let run = [run, execute("portal", 0), scene.data(), close.clone()].concat();
        let gone = [describe_statement("statement"), sync()].concat();
        vec![Step::Ready(run, 1), Step::Ready(close, 1), Step::Ready(gone, 1)]
    }),
    shape("Close before it", |scene| {
        let other = [parse("statement", NOTE, &[]), bind_text("portal", "statement", &[])].concat();
        let close = [close_portal("portal"), close_statement("statement")].concat();
        let run = [scene.before(), scene.started("statement", "portal"), execute("portal", 0), scene.data()].concat();
        vec![Step::Ready([scene.opening(), other, close, run, sync()].concat(), 1)]
    }),
];

/// Shapes whose portal starts before the cause of its failure.
pub const RESUMED: &[Shape] = &[
    shape("resumed at once", |scene| {
        vec![Step::Ready([begun(scene), between(scene), execute("p", 1), unnamed(NOTE, &[]), sync()].concat(), 1)]
    }),
    shape("resumed after Flush", |scene| {
        let resume = [between(scene), execute("p", 0), flush()].concat();
        vec![
            Step::Until([begun(scene), flush()].concat(), b's'),
            Step::Until(resume, b'E'),
            Step::Ready([execute("p", 0), sync()].concat(), 1),
        ]
    }),
    Shape {
        needs_block: true,
        ..shape("resumed after Sync", |scene| {
            let resume = [between(scene), sync(), execute("p", 1), sync()].concat();
            vec![Step::Ready([begun(scene), sync()].concat(), 1), Step::Ready(resume, 2)]
        })
    },
];

fn between(scene: &Scene) -> Vec<u8> {
    unnamed(scene.rejected.between, &[])
}

fn begun(scene: &Scene) -> Vec<u8> {
    [scene.opening(), scene.started("s", "p"), execute("p", 1)].concat()
}

fn string_with_transactions(scene: &Scene) -> Vec<Step> {
    let text = format!("BEGIN; {NOTE}; COMMIT; BEGIN; {NOTE}; {}; COMMIT; {NOTE}", scene.text());
    vec![Step::Ready(scene.string(&text), 1), Step::Ready(query("SELECT 'refused'"), 1)]
}

fn strings_without_waiting(scene: &Scene) -> Vec<Step> {
    let rejected = scene.later_string(&scene.text());
    let [begin, note, select, commit] = ["BEGIN", NOTE, "SELECT 'refused'", "COMMIT"].map(query);
    let failing = [begin, note.clone(), rejected.clone(), select, commit].concat();
    vec![Step::Ready([scene.string("SELECT 'first'"), failing, note.clone(), rejected, note].concat(), 9)]
}

fn with_flush(scene: &Scene) -> Vec<Step> {
    let mut steps = vec![Step::Until([scene.opening(), unnamed(NOTE, &[]), flush()].concat(), b'C')];
    let statements = scene.rejected.before.iter();
    steps.extend(statements.map(|statement| Step::Until([unnamed(statement, &[]), flush()].concat(), b'C')));
    let started = [parse("", scene.statement, &[]), bind_text("", "", &[]), describe_portal(""), flush()].concat();
    steps.push(Step::Until(started, b'n'));
    steps.push(Step::Until([execute("", 0), flush()].concat(), b'E'));
    steps.push(Step::Ready([scene.data(), unnamed(NOTE, &[]), flush(), sync()].concat(), 1));
    steps
}

fn batches(scene: &Scene) -> Vec<Step> {
    let note = [unnamed(NOTE, &[]), sync()].concat();
    let rejected = [scene.described(), sync()].concat();
    vec![Step::Ready([scene.opening(), note.clone(), rejected.clone(), note.clone(), rejected, note].concat(), 5)]
}

fn named(scene: &Scene, statement: &str, portal: &str) -> Vec<Step> {
    let prepare = parse(statement, scene.statement, &[]);
    let first = [scene.opening(), prepare.clone(), describe_statement(statement), sync()].concat();
    let before = match scene.before() {
        // `before` replaces the unnamed statement.
        before if statement.is_empty() && !before.is_empty() => [before, prepare].concat(),
        before => before,
    };
    let run = [bind_text(portal, statement, &[]), describe_portal(portal), execute(portal, 0), scene.data()].concat();
    let run = [before, run, sync()].concat();
    // The statement still exists, but the portal does not.
    let inspect = [describe_statement(statement), sync(), describe_portal(portal), sync()].concat();
    vec![Step::Ready(first, 1), Step::Ready([run.clone(), run].concat(), 2), Step::Ready(inspect, 2)]
}

fn later_batches(scene: &Scene) -> Vec<Step> {
    let prepare = [scene.opening(), parse("statement", scene.statement, &[]), sync()].concat();
    let bind = [bind_text("portal", "statement", &[]), sync()].concat();
    let run = [scene.before(), execute("portal", 0), scene.data(), sync()].concat();
    vec![Step::Ready(prepare, 1), Step::Ready(bind, 1), Step::Ready(run, 1)]
}

impl Scene<'_> {
    /// All statements as one text.
    fn text(&self) -> String {
        [self.rejected.before, &[self.statement]].concat().join("; ")
    }

    /// The first Query of the conversation, with its COPY data.
    fn string(&self, text: &str) -> Vec<u8> {
        let texts: Vec<&str> = self.prefix.iter().copied().chain([text]).collect();
        [query(&texts.join("; ")), self.prefix_data(), self.data()].concat()
    }

    /// A later Query, with its COPY data.
    fn later_string(&self, text: &str) -> Vec<u8> {
        [query(text), self.data()].concat()
    }

    /// The start of a pipeline.
    fn opening(&self) -> Vec<u8> {
        let statements = self.prefix.iter().flat_map(|statement| unnamed(statement, &[]));
        statements.chain(self.prefix_data()).collect()
    }

    /// Statements that must run earlier in the same transaction.
    fn before(&self) -> Vec<u8> {
        self.rejected.before.iter().flat_map(|statement| unnamed(statement, &[])).collect()
    }

    /// Parse, Bind and Execute for each statement.
    fn unnamed(&self) -> Vec<u8> {
        [self.before(), unnamed(self.statement, &[]), self.data()].concat()
    }

    /// The same with Describe.
    fn described(&self) -> Vec<u8> {
        [self.before(), self.started("", ""), describe_portal(""), execute("", 0), self.data()].concat()
    }

    fn started(&self, statement: &str, portal: &str) -> Vec<u8> {
        [parse(statement, self.statement, &[]), bind_text(portal, statement, &[])].concat()
    }

    /// COPY FROM STDIN data of the statement, sent in advance.
    fn data(&self) -> Vec<u8> {
        if self.rejected.copies { [copy_data(b"1\n"), copy_done()].concat() } else { Vec::new() }
    }

    fn prefix_data(&self) -> Vec<u8> {
        let copies = self.prefix.iter().any(|statement| statement.starts_with("COPY notes FROM"));
        if copies { [copy_data(b"copied\n"), copy_done()].concat() } else { Vec::new() }
    }
}

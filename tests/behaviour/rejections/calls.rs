//! A rejected fast-path call leaves the same state as a failed one, including the client's unnamed statement.

use crate::rejections::compare::{World, masked};
use crate::rejections::conversation::{Step, converse};
use crate::rejections::states::{NOTE, STATES};
use crate::support::message::{bind_text, execute, function_call, parse, query, sync, unnamed};
use crate::support::{Address, Wire};

/// OID of `int4div`.
const DIVISION: u32 = 154;

#[test]
fn a_rejected_call_has_the_effects_of_a_failed_one() {
    let world = World::start();
    let (one, zero) = (1i32.to_be_bytes(), 0i32.to_be_bytes());
    let call = function_call(DIVISION, &[Some(&one), Some(&zero)]);
    let mut differences = Vec::new();
    for state in STATES.iter().filter(|state| !state.copying && state.prefix.is_empty()) {
        let prepare = [parse("", "SELECT 'unnamed'", &[]), sync()].concat();
        let run = [bind_text("", "", &[]), execute("", 0), sync()].concat();
        let in_pipeline = [unnamed(NOTE, &[]), call.clone(), sync()].concat();
        // In a failed transaction, the first error in the pipeline also skips the call.
        let answers = if state.failed { 1 } else { 2 };
        let alone = vec![Step::Ready(prepare, 1), Step::Ready(call.clone(), 1), Step::Ready(run, 1)];
        for steps in [alone, vec![Step::Ready(in_pipeline, answers)]] {
            let steps = [(state.enter)(), steps, (state.leave)(), vec![Step::Ready(query("COMMIT"), 1)]].concat();
            let run = |address: &Address| {
                let frames = converse(&mut Wire::login(address, "postgres", "postgres"), &steps);
                (masked(&frames), world.take_notes("postgres"))
            };
            let [direct, proxied] = [world.fenced.postgres.address(), world.fenced.proxy.address()].map(|it| run(&it));
            if direct != proxied {
                differences.push(format!("{}: direct {direct:#?} proxied {proxied:#?}", state.name));
            }
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

//! Effects of statements, in outlines of cases: `text; text => effects` in the notation of [`show`].

mod arrays;
mod bounds;
mod definitions;
mod grammar;
mod hostile;
mod newer;
mod opaque;
mod parameters;
mod queries;
mod rows;
mod shapes;
mod texts;

use super::*;
use fencegate_testing::{dice::Dice, literals::read_once};

/// Asserts the effects of an outline's texts.
fn check(outline: &str) {
    check_outline(outline, |text| show_result(&analyze(text.as_bytes(), Lexing::USUAL)));
}

/// Like [`check`], with one text per case: for texts with semicolons, or generated ones.
fn check_each(cases: &[(&str, &str)]) {
    compare(cases, |text| show_result(&analyze(text.as_bytes(), Lexing::USUAL)));
}

/// Asserts the output of `show` for the texts: `text; text => output`, over any number of lines. `--` begins a comment.
fn check_outline(outline: &str, show: impl Fn(&str) -> String) {
    let (mut texts, mut cases) = (Vec::new(), Vec::new());
    for line in outline.lines().filter(|line| !line.trim_start().starts_with("--")) {
        let (line, expected) = line.rsplit_once(" =>").map_or((line, None), |(line, it)| (line, Some(it.trim())));
        texts.extend(line.split(';').map(str::trim).filter(|text| !text.is_empty()));
        if let Some(expected) = expected {
            cases.extend(texts.drain(..).map(|text| (text, expected)));
        }
    }
    assert!(texts.is_empty(), "texts without an expected output: {texts:?}");
    compare(&cases, show);
}

/// Compares the output for each text, and a cache's results for variants of the text with other literals.
fn compare(cases: &[(&str, &str)], show: impl Fn(&str) -> String) {
    let mut dice = Dice::new(1);
    for (text, _) in cases {
        read_once(text, &mut dice);
    }
    let wrong = cases.iter().map(|(text, expected)| (text, expected, show(text)));
    let wrong = wrong.filter(|(_, expected, found)| found != *expected);
    let wrong: Vec<_> = wrong.map(|(text, e, f)| format!("{text}\n  expected: {e}\n  found:    {f}")).collect();
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

fn show_result(result: &Result<Script, Unreadable>) -> String {
    match result {
        Ok(script) => script.statements.iter().map(|statement| show(statement)).collect::<Vec<_>>().join(" | "),
        Err(unreadable) => format!("{unreadable:?}"),
    }
}

/// Describes a statement, as in `insert:t calls:f unknown`; `-` without effects.
fn show(statement: &Statement) -> String {
    let mut words = Vec::new();
    for Write { relation, operation, .. } in &statement.writes {
        let operation = format!("{operation:?}").to_lowercase();
        words.push(format!("{operation}:{}", qualified(&relation.schema, &relation.name)));
    }
    for function in &statement.functions {
        words.push(format!("calls:{}", qualified(&function.schema, &function.name)));
    }
    match &statement.parameter {
        ParameterEffect::None => {}
        ParameterEffect::Set { value, local: false } => words.push(format!("set({value})")),
        ParameterEffect::Set { value, local: true } => words.push(format!("set-local({value})")),
        ParameterEffect::Reset { local: false } => words.push("reset".into()),
        ParameterEffect::Reset { local: true } => words.push("reset-local".into()),
        ParameterEffect::ResetAll => words.push("reset-all".into()),
        ParameterEffect::Unknown => words.push("unknown".into()),
    }
    match &statement.path {
        PathEffect::None => {}
        PathEffect::Set { value, local } => words.push(format!("path{}({value})", if *local { "-local" } else { "" })),
        PathEffect::Unknown => words.push("path".into()),
    }
    match &statement.transaction {
        TransactionEffect::None => {}
        effect => words.push(format!("{effect:?}").to_lowercase().replace('"', "")),
    }
    match &statement.prepared {
        PreparedEffect::None => {}
        PreparedEffect::Prepare { name, statement } => words.push(format!("prepare({name}: {})", show(statement))),
        PreparedEffect::Execute { name, .. } => words.push(format!("execute({name})")),
        PreparedEffect::Fetch { name } => words.push(format!("fetch({name})")),
        PreparedEffect::Deallocate { name } => words.push(format!("deallocate({name})")),
        PreparedEffect::DeallocateAll => words.push("deallocate-all".into()),
    }
    if let Some(ExclusiveUse { database, by_force, .. }) = &statement.needs_database_alone {
        words.push(format!("alone({database}{})", if *by_force { " by force" } else { "" }));
    }
    if statement.opaque.is_some() {
        words.push("opaque".into());
    }
    if statement.changes_catalog {
        words.push("catalog".into());
    }
    for Redirect { relation, to } in &statement.redirects {
        let to = to.as_ref().map_or("*".into(), |to| qualified(&to.schema, &to.name));
        words.push(format!("{}=>{to}", qualified(&relation.schema, &relation.name)));
    }
    if words.is_empty() { "-".into() } else { words.join(" ") }
}

fn qualified(schema: &Option<String>, name: &str) -> String {
    schema.iter().map(|schema| format!("{schema}.")).collect::<String>() + name
}

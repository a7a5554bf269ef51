//! What statements do: tables of cases, `(text, what it does)` in the notation of [`show`].

mod bounds;
mod definitions;
mod grammar;
mod hostile;
mod parameters;
mod queries;
mod rows;
mod texts;

use super::*;

pub(super) const USUAL: Lexing =
    Lexing { standard_conforming_strings: true, encoding: Encoding::Utf8, server: ServerEncoding::Utf8 };

/// Asserts what each text does.
fn check(cases: &[(&str, &str)]) {
    let wrong: Vec<String> = cases
        .iter()
        .map(|(text, expected)| (text, expected, show_result(&analyse(text.as_bytes(), USUAL))))
        .filter(|(_, expected, found)| found != *expected)
        .map(|(text, expected, found)| format!("{text}\n  expected: {expected}\n  found:    {found}"))
        .collect();
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

fn show_result(result: &Result<Script, Unreadable>) -> String {
    match result {
        Ok(script) => script.statements.iter().map(|statement| show(statement)).collect::<Vec<_>>().join(" | "),
        Err(unreadable) => format!("{unreadable:?}"),
    }
}

/// `insert:t calls:f unknown`: what is said about a statement, in words; `-` for nothing.
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
    if let Some(Alone { database, by_force }) = &statement.needs_database_alone {
        words.push(format!("alone({database}{})", if *by_force { " by force" } else { "" }));
    }
    if statement.opaque.is_some() {
        words.push("opaque".into());
    }
    if statement.changes_catalogue {
        words.push("catalogue".into());
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

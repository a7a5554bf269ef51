//! The extended protocol: Parse, Bind, Execute and Close, and the types and values of parameters, where keys depend on them.
//!
//! Must never judge a message by the meaning of a name that a reply may still change, nor decode a value differently
//! than the server does.

use super::host::Host;
use super::judge::opaque;
use super::message::Verdict;
use super::names::{Meaning, known_by};
use super::path_lookup::Lookup;
use super::pipeline::{Defined, Pipeline, Request};
use super::session::{ClientFault, Session, Side};
use super::settings::Settings;
use super::verdict::Run;
use fencegate_policy::PolicySet;
use fencegate_statement::rows::{Argument, Declared};
use fencegate_statement::{OpaqueReason, ParameterEffect, Script, Statement, StatementKind, Unreadable};
use fencegate_wire::frame::{HEADER, Header, split_string};
use fencegate_wire::message::{self, Bound};
use std::sync::Arc;

impl<H: Host> Session<H> {
    pub(super) fn parse(&mut self, header: Header) -> Result<bool, ClientFault> {
        let Some(room) = self.make_room(header) else { return Ok(false) };
        if room.is_ok() && !self.is_whole(header) || room.is_err() && !self.has_strings(header, 1)? {
            return Ok(false);
        }
        if self.names.statements.is_full() && !self.pipeline.is_empty() {
            return Ok(self.hold(header));
        }
        let permit = self.message.text.permit.take();
        let input = self.client.start_of_body(header);
        let Some((name, rest)) = split_string(input) else {
            // The server reports the error.
            self.pass(header, Some(Request::Parse { defines: None }));
            return Ok(true);
        };
        if room.is_ok() && self.pipeline.leaves_in_doubt(rest) {
            return Ok(self.hold_for_lexing(header));
        }
        let text = match room {
            Ok(()) => split_string(rest).ok_or(OpaqueReason::CutShort),
            Err(why) => Err(why),
        };
        let statement = match text {
            // With its rows in any case: the prepared statement may outlive the policies.
            Ok((text, types)) => match self.host.read(text, self.settings.lexing, true, permit) {
                Ok(read) => with_types(only_statement(&read), types),
                Err(turn) => {
                    self.request(turn);
                    return Ok(false);
                }
            },
            Err(why) => opaque(StatementKind::Unspecified, why),
        };
        let name = known_by(name).to_vec();
        let sequence = self.names.statements.define(&name, statement, self.pipeline.batch());
        self.pass(header, Some(Request::Parse { defines: Some(Defined { name, sequence }) }));
        Ok(true)
    }

    pub(super) fn bind(&mut self, header: Header) -> Result<bool, ClientFault> {
        if !self.has_strings(header, 2)? {
            return Ok(false);
        }
        if self.names.portals.is_full() && !self.pipeline.is_empty() {
            return Ok(self.hold(header));
        }
        let names = split_string(self.client.start_of_body(header))
            .and_then(|(portal, rest)| Some((portal, split_string(rest)?.0)));
        let Some((portal, name)) = names else {
            // The server reports the error.
            self.pass(header, Some(Request::bind()));
            return Ok(true);
        };
        let statement = match self.names.statements.meaning(name, self.pipeline.batch()) {
            Meaning::Certain(statement) => statement,
            Meaning::Unsettled => return Ok(self.hold(header)),
            Meaning::Unknown => opaque(StatementKind::Unspecified, OpaqueReason::UnseenStatement),
        };
        let portal = known_by(portal).to_vec();
        let needs_values = statement.has_parameters() && self.host.policies().has_keys();
        if needs_values {
            let Some(room) = self.make_room(header) else { return Ok(false) };
            if room.is_ok() && !self.is_whole(header) {
                return Ok(false);
            }
        }
        let statement = match needs_values {
            true => {
                let values = bound_values(&self.client, header);
                if has_key_in_doubt(&statement, &values, self.host.policies(), &self.pipeline) {
                    return Ok(self.hold_for_lexing(header));
                }
                with_values(&statement, values, &self.settings, &self.pipeline)
            }
            false => statement,
        };
        let Some(statement) = self.with_path(statement) else { return Ok(false) };
        // The query's relations also have the meaning that the path gives them now.
        let mut alone = [statement];
        let behind = self.wait_behind_admit(&alone);
        let held = behind.or_else(|| self.resolve_by_path(&mut alone, Lookup::AtBind));
        let [statement] = alone;
        match held {
            None => {}
            Some(Verdict::Reject(_, rejection)) => {
                self.discard(header, rejection, &statement);
                return Ok(true);
            }
            Some(_) => return Ok(false),
        }
        if self.queries_before_bind(&statement) {
            return Ok(false);
        }
        let sequence = self.names.portals.define(&portal, statement.clone(), self.pipeline.batch());
        self.pass(header, Some(Request::Bind { defines: Some(Defined { name: portal, sequence }), plans: statement }));
        Ok(true)
    }

    /// Binding a portal resolves its names by the search path. Returns `None` if the server must be queried first.
    fn with_path(&mut self, statement: Arc<Statement>) -> Option<Arc<Statement>> {
        let matters = statement.keys_by_path && !statement.writes.is_empty() && self.host.policies().has_keys();
        if !matters || self.settings.parameter.failed() {
            return Some(statement);
        }
        let wanted = self.wanted(std::slice::from_ref(&statement), &[]);
        let catalog = self.host.catalog(wanted.as_ref()).catalog;
        if !catalog.has_shadows() {
            return Some(statement);
        }
        if let Some(path) = &self.message.facts.path {
            return Some(Arc::new(statement.by_known_path(catalog.path_leads_to_catalog(path))));
        }
        if self.pipeline.is_empty() {
            self.ask();
            return None;
        }
        // During COPY the proxy cannot ask, and the server accepts no Bind.
        match self.settle() {
            Verdict::Reject(..) => Some(Arc::new(statement.by_known_path(false))),
            _ => None,
        }
    }

    pub(super) fn execute(&mut self, header: Header) -> bool {
        if !self.is_whole(header) {
            return false;
        }
        let portal =
            split_string(self.client.message_body(header)).map_or(&[][..], |(portal, _)| known_by(portal)).to_vec();
        let statement = match self.names.portals.meaning(&portal, self.pipeline.batch()) {
            Meaning::Certain(statement) => statement,
            Meaning::Unsettled => return self.hold(header),
            Meaning::Unknown if self.names.portals.is_complete() => declared(),
            Meaning::Unknown => opaque(StatementKind::Portal, OpaqueReason::UnseenPortal),
        };
        if self.needs_no_verdict(&statement) {
            self.names.portals.begin(&portal);
            self.pass(header, Some(Request::Execute { statement, defines: None }));
            return true;
        }
        let run = if self.names.portals.has_begun(&portal) { Run::GoesOn } else { Run::Begins };
        let (verdict, mut resolved) = self.judge(&[statement], run);
        match verdict {
            Verdict::Hold => return false,
            Verdict::Forward => {
                let defines = self
                    .names
                    .define_prepared(&resolved, self.pipeline.batch())
                    .pop()
                    .map(|(_, name, sequence)| (name, sequence));
                let statement = resolved.pop().unwrap_or_default().in_portal();
                self.names.portals.begin(&portal);
                self.pass(header, Some(Request::Execute { statement, defines }));
            }
            Verdict::Reject(_, rejection) => self.discard(header, rejection, &resolved.pop().unwrap_or_default()),
        }
        true
    }

    pub(super) fn close(&mut self, header: Header) -> bool {
        if !self.is_whole(header) {
            return false;
        }
        let (kind, name) = self.client.message_body(header).split_first().unwrap_or((&0, &[]));
        let name = split_string(name).map_or(&[][..], |(name, _)| known_by(name)).to_vec();
        let request = if *kind == b'S' { Request::CloseStatement { name } } else { Request::ClosePortal { name } };
        self.pass(header, Some(request));
        true
    }
}

/// The statement of a portal that no Bind created. A cursor was judged at its DECLARE, but its settings take effect when it
/// runs. Any other portal does not exist.
fn declared() -> Arc<Statement> {
    Arc::new(Statement { kind: StatementKind::Portal, parameter: ParameterEffect::Unknown, ..Statement::default() })
}

/// The statement that a Parse of this text defines.
fn only_statement(read: &Result<Script, Unreadable>) -> Arc<Statement> {
    match read {
        Ok(script) if script.statements.len() <= 1 => script.statements.first().cloned().unwrap_or_default(),
        // The server refuses several statements in one Parse.
        Ok(_) => opaque(StatementKind::Unspecified, OpaqueReason::SeveralStatements),
        Err(why) => opaque(StatementKind::Unspecified, why.into()),
    }
}

/// The values of a Bind; empty if the message has not arrived whole.
pub(super) fn bound_values(client: &Side, header: Header) -> Vec<Bound<'_>> {
    let body = client.input.get(HEADER..header.frame()).unwrap_or_default();
    let values = split_string(body).and_then(|(_portal, rest)| split_string(rest));
    values.and_then(|(_name, rest)| message::bound_values(rest)).unwrap_or_default()
}

/// The statement with the values that a Bind gives its parameters.
pub(super) fn with_values(
    statement: &Statement,
    values: Vec<Bound>,
    settings: &Settings,
    pipeline: &Pipeline,
) -> Arc<Statement> {
    let values: Vec<Argument> = values.into_iter().map(|value| argument(value, settings, pipeline)).collect();
    Arc::new(statement.bound(&values))
}

fn argument<'v>(value: Bound<'v>, settings: &Settings, pipeline: &Pipeline) -> Argument<'v> {
    let is_clear = |bytes: &[u8]| bytes.is_ascii() || settings.lexing.keeps_text();
    match value {
        Bound::Text(bytes) | Bound::Binary(bytes) if !is_clear(bytes) || pipeline.leaves_in_doubt(bytes) => {
            Argument::Unknown
        }
        Bound::Text(bytes) => Argument::Text(bytes),
        Bound::Binary(bytes) => Argument::Binary(bytes),
        Bound::Null => Argument::Null,
    }
}

/// Returns true if pending effects of forwarded messages may change how the value of a key is read.
pub(super) fn has_key_in_doubt(
    statement: &Statement,
    values: &[Bound],
    policies: &PolicySet,
    pipeline: &Pipeline,
) -> bool {
    let tables = || policies.resources.iter().flat_map(|resource| &resource.tables);
    let is_key = |column: &str| tables().any(|table| table.key.as_deref() == Some(column));
    values.iter().enumerate().any(|(index, value)| match value {
        Bound::Text(bytes) | Bound::Binary(bytes) => {
            pipeline.leaves_in_doubt(bytes) && statement.uses_parameter(index + 1, is_key)
        }
        Bound::Null => false,
    })
}

/// The statement with the types that a Parse declares for its parameters.
pub(super) fn with_types(statement: Arc<Statement>, types: &[u8]) -> Arc<Statement> {
    // The types matter for keys. They also matter for a statement that runs nothing, because binding a value to it may
    // run code.
    if !statement.has_parameters() && !statement.runs_nothing() {
        return statement;
    }
    // The server refuses a truncated list.
    let types = message::parameter_types(types).unwrap_or_default();
    let declared = types.into_iter().map(Declared::from_oid).collect();
    Arc::new(Statement { declared, ..Arc::unwrap_or_clone(statement) })
}

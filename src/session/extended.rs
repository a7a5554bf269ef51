//! The extended protocol: Parse, Bind, Execute and Close.
//!
//! Must never judge a message by a name's meaning before replies that are still to come.

use super::judge::opaque;
use super::names::{Meaning, known_by};
use super::path::Lookup;
use super::replies::{Defined, Request};
use super::values::with_types;
use super::verdict::{Run, Verdict};
use super::{ClientFault, Host, Session};
use crate::statement::{OpaqueReason, ParameterEffect, Script, Statement, StatementKind, Unreadable};
use crate::wire::frame::{Header, split_string};
use std::sync::Arc;

impl<H: Host> Session<H> {
    pub(super) fn parse(&mut self, header: Header) -> Result<bool, ClientFault> {
        let Some(room) = self.make_room(header) else { return Ok(false) };
        if room.is_ok() && !self.is_whole(header) || room.is_err() && !self.has_strings(header, 1)? {
            return Ok(false);
        }
        if self.statements.is_full() && !self.replies.is_empty() {
            return Ok(self.hold(header));
        }
        let permit = self.pending.permit.take();
        let input = self.start_of_body(header);
        let Some((name, rest)) = split_string(input) else {
            // The server says what is wrong with it.
            self.pass(header, Some(Request::Parse { defines: None }));
            return Ok(true);
        };
        if room.is_ok() && self.lexing_in_doubt(rest) {
            return Ok(self.hold_for_lexing(header));
        }
        let text = match room {
            Ok(()) => split_string(rest).ok_or(OpaqueReason::CutShort),
            Err(why) => Err(why),
        };
        let statement = match text {
            // It may outlive the policies, so its rows are wanted in any case.
            Ok((text, types)) => match self.host.read(text, self.lexing, true, permit) {
                Ok(read) => with_types(only_statement(&read), types),
                Err(turn) => {
                    self.ask_for(turn);
                    return Ok(false);
                }
            },
            Err(why) => opaque(StatementKind::Unspecified, why),
        };
        let name = known_by(name).to_vec();
        let sequence = self.statements.define(&name, statement, self.batch);
        self.pass(header, Some(Request::Parse { defines: Some(Defined { name, sequence }) }));
        Ok(true)
    }

    pub(super) fn bind(&mut self, header: Header) -> Result<bool, ClientFault> {
        if !self.has_strings(header, 2)? {
            return Ok(false);
        }
        if self.portals.is_full() && !self.replies.is_empty() {
            return Ok(self.hold(header));
        }
        let names =
            split_string(self.start_of_body(header)).and_then(|(portal, rest)| Some((portal, split_string(rest)?.0)));
        let Some((portal, name)) = names else {
            // The server says what is wrong with it.
            self.pass(header, Some(Request::bind()));
            return Ok(true);
        };
        let statement = match self.statements.meaning(name, self.batch) {
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
        if needs_values && self.has_key_in_doubt(header, &statement) {
            return Ok(self.hold_for_lexing(header));
        }
        let statement = if needs_values { self.with_values(header, &statement) } else { statement };
        let Some(statement) = self.with_path(statement) else { return Ok(false) };
        // So are the relations of its own query.
        let mut alone = [statement];
        let behind = self.behind_given_up(&alone);
        let held = behind.or_else(|| self.by_path(&mut alone, Lookup::AtBind));
        let [statement] = alone;
        match held {
            None => {}
            Some(Verdict::Reject(_, rejection)) => {
                self.discard(header, rejection, &statement);
                return Ok(true);
            }
            Some(_) => return Ok(false),
        }
        if self.asks_before_bind(&statement) {
            return Ok(false);
        }
        let sequence = self.portals.define(&portal, statement.clone(), self.batch);
        self.pass(header, Some(Request::Bind { defines: Some(Defined { name: portal, sequence }), plans: statement }));
        Ok(true)
    }

    /// A portal's names are those that the search path gives them when it is bound. None: the server has to be asked.
    fn with_path(&mut self, statement: Arc<Statement>) -> Option<Arc<Statement>> {
        let matters = statement.keys_by_path && !statement.writes.is_empty() && self.host.policies().has_keys();
        if !matters || self.parameter.failed() {
            return Some(statement);
        }
        let wanted = self.wanted(std::slice::from_ref(&statement), &[]);
        let catalogue = self.host.catalogue(wanted.as_ref()).catalogue;
        if !catalogue.has_shadows() {
            return Some(statement);
        }
        if let Some(path) = &self.pending.path {
            return Some(Arc::new(statement.by_known_path(catalogue.path_leads_to_catalogue(path))));
        }
        if self.replies.is_empty() {
            self.ask();
            return None;
        }
        // During COPY it cannot be asked, and the server takes no Bind.
        match self.settle() {
            Verdict::Reject(..) => Some(Arc::new(statement.by_known_path(false))),
            _ => None,
        }
    }

    pub(super) fn execute(&mut self, header: Header) -> bool {
        if !self.is_whole(header) {
            return false;
        }
        let portal = split_string(self.message_body(header)).map_or(&[][..], |(portal, _)| known_by(portal)).to_vec();
        let statement = match self.portals.meaning(&portal, self.batch) {
            Meaning::Certain(statement) => statement,
            Meaning::Unsettled => return self.hold(header),
            Meaning::Unknown if self.portals.is_complete() => declared(),
            Meaning::Unknown => opaque(StatementKind::Portal, OpaqueReason::UnseenPortal),
        };
        let run = if self.portals.has_begun(&portal) { Run::GoesOn } else { Run::Begins };
        let (verdict, mut resolved) = self.judge(&[statement], run);
        match verdict {
            Verdict::Hold => return false,
            Verdict::Forward => {
                let defines = self.define_prepared(&resolved).pop().map(|(_, name, sequence)| (name, sequence));
                let statement = resolved.pop().unwrap_or_default().in_portal();
                self.portals.begin(&portal);
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
        let (kind, name) = self.message_body(header).split_first().unwrap_or((&0, &[]));
        let name = split_string(name).map_or(&[][..], |(name, _)| known_by(name)).to_vec();
        let request = if *kind == b'S' { Request::CloseStatement { name } } else { Request::ClosePortal { name } };
        self.pass(header, Some(request));
        true
    }
}

/// A portal that no Bind made. What DECLARE made was judged then, but sets what it sets when it runs; any other does not
/// exist.
fn declared() -> Arc<Statement> {
    Arc::new(Statement { kind: StatementKind::Portal, parameter: ParameterEffect::Unknown, ..Statement::default() })
}

/// What a Parse of this text defines.
fn only_statement(read: &Result<Script, Unreadable>) -> Arc<Statement> {
    match read {
        Ok(script) if script.statements.len() <= 1 => script.statements.first().cloned().unwrap_or_default(),
        // The server refuses several statements in one Parse.
        Ok(_) => opaque(StatementKind::Unspecified, OpaqueReason::SeveralStatements),
        Err(why) => opaque(StatementKind::Unspecified, why.into()),
    }
}

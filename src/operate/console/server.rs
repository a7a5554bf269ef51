//! The console in pgwire's terms: the simple and the extended protocol.
//!
//! Owns transaction status (there are no transactions beyond it), prepared statements and portals. Must never decode a
//! client's bytes: `frontend` does.

use super::client::Console;
use super::command::{self, Command};
use super::driver_statement::DriverStatement;
use super::result_set::{error, fields, info};
use super::{control, headings_of, run};
use async_trait::async_trait;
use fencegate_wire::error::{ErrorText, Severity};
use futures_util::{Sink, SinkExt};
use pgwire::api::portal::{Format, Portal};
use pgwire::api::query::{ExtendedQueryHandler, SimpleQueryHandler, send_execution_response, send_query_response};
use pgwire::api::results::{FieldInfo, Response, Tag};
use pgwire::api::stmt::{QueryParser, StoredStatement};
use pgwire::api::store::{Entry, PortalStore};
use pgwire::api::{ClientInfo, ClientPortalStore, DEFAULT_NAME, Type};
use pgwire::error::{ErrorInfo, PgWireError, PgWireResult};
use pgwire::messages::PgWireBackendMessage;
use pgwire::messages::extendedquery::{
    Bind, BindComplete, Close, CloseComplete, Parse, ParseComplete, Sync as SyncMessage, TARGET_TYPE_BYTE_STATEMENT,
};
use pgwire::messages::response::{NoticeResponse, ReadyForQuery, TransactionStatus};
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;

/// Maximum number of prepared statements of a session.
const MOST_STATEMENTS: usize = 1000;

/// Maximum number of portals of a session: each keeps the rows that were not fetched yet.
const MOST_PORTALS: usize = 100;

/// A command that a client has prepared.
#[derive(Clone, Debug)]
pub struct PreparedCommand(Command);

#[async_trait]
impl SimpleQueryHandler for Console {
    /// Not cancel-safe: a command may be half done.
    async fn do_query<C>(&self, client: &mut C, text: &str) -> PgWireResult<Vec<Response>>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let commands = command::parse(text).map_err(error)?;
        if commands.is_empty() {
            return Ok(vec![Response::EmptyQuery]);
        }
        self.drop_portals_outside_transaction(client);
        let mut responses = Vec::new();
        for command in commands {
            match self.respond(client, &command, &Format::UnifiedText).await {
                Ok(response) => responses.push(response),
                Err(error) => {
                    // Earlier commands have taken effect, so answer them.
                    for response in responses {
                        send(client, response).await?;
                    }
                    return Err(error);
                }
            }
        }
        Ok(responses)
    }
}

#[async_trait]
impl ExtendedQueryHandler for Console {
    type Statement = PreparedCommand;
    type QueryParser = Parser;

    fn query_parser(&self) -> Arc<Parser> {
        Arc::new(Parser)
    }

    /// Like pgwire's own implementation, but with a limit on statements. Cancel-safe.
    async fn on_parse<C>(&self, client: &mut C, message: Parse) -> PgWireResult<()>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = PreparedCommand>,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let name = message.name.clone().unwrap_or_else(|| DEFAULT_NAME.to_owned());
        if is_full(&self.names.lock().statements, MOST_STATEMENTS, &name) {
            let message = format!("the console keeps at most {MOST_STATEMENTS} prepared statements");
            return Err(error(ErrorText::new("53400", message).hint("DEALLOCATE ALL removes them.")));
        }
        match StoredStatement::parse(client, &message, self.query_parser()).await? {
            Some(statement) => client.portal_store().put_statement(Arc::new(statement)),
            None => client.portal_store().put_empty_statement(&name),
        }
        self.names.lock().statements.insert(name);
        client.feed(PgWireBackendMessage::ParseComplete(ParseComplete::new())).await?;
        Ok(())
    }

    /// Like pgwire's own implementation, but with a limit on portals. Cancel-safe.
    async fn on_bind<C>(&self, client: &mut C, message: Bind) -> PgWireResult<()>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = PreparedCommand>,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let name = message.portal_name.as_deref().unwrap_or(DEFAULT_NAME);
        if is_full(&self.names.lock().portals, MOST_PORTALS, name) {
            let message = format!("the console keeps at most {MOST_PORTALS} portals");
            return Err(error(ErrorText::new("53400", message).hint("Close them, or end the transaction.")));
        }
        if !message.parameters.is_empty() {
            let message =
                format!("bind message supplies {} parameters, but commands take none", message.parameters.len());
            return Err(error(ErrorText::new("08P01", message)));
        }
        let statement = message.statement_name.as_deref().unwrap_or(DEFAULT_NAME);
        match client.portal_store().get_statement(statement) {
            Some(Entry::Value(statement)) => {
                client.portal_store().put_portal(Arc::new(Portal::try_new(&message, statement)?));
            }
            Some(Entry::Empty) => client.portal_store().put_empty_portal(name),
            None => return Err(PgWireError::StatementNotFound(statement.to_owned())),
        }
        self.names.lock().portals.insert(name.to_owned());
        client.feed(PgWireBackendMessage::BindComplete(BindComplete::new())).await?;
        Ok(())
    }

    /// Like the server, drops portals at the end of a transaction. Cancel-safe: the client may have received a part of
    /// the answer.
    async fn on_sync<C>(&self, client: &mut C, _: SyncMessage) -> PgWireResult<()>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = PreparedCommand>,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        self.drop_portals_outside_transaction(client);
        let status = client.transaction_status();
        client.send(PgWireBackendMessage::ReadyForQuery(ReadyForQuery::new(status))).await?;
        Ok(())
    }

    /// Like pgwire's own implementation, but also frees the name. Cancel-safe.
    async fn on_close<C>(&self, client: &mut C, message: Close) -> PgWireResult<()>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = PreparedCommand>,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let name = message.name.as_deref().unwrap_or(DEFAULT_NAME);
        if message.target_type == TARGET_TYPE_BYTE_STATEMENT {
            self.deallocate(client.portal_store(), Some(name));
        } else {
            client.portal_store().rm_portal(name);
            self.names.lock().portals.remove(name);
        }
        client.feed(PgWireBackendMessage::CloseComplete(CloseComplete::new())).await?;
        Ok(())
    }

    /// Not cancel-safe: a command may be half done.
    async fn do_query<C>(&self, client: &mut C, portal: &Portal<PreparedCommand>, _: usize) -> PgWireResult<Response>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = PreparedCommand>,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        self.respond(client, &portal.statement.statement.0, &portal.result_column_format).await
    }
}

impl Console {
    /// Runs a command and sends its notices. Not cancel-safe: the command may be half done.
    async fn respond<C>(&self, client: &mut C, command: &Command, format: &Format) -> PgWireResult<Response>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let done = |tag| Ok(Response::Execution(Tag::new(tag)));
        let answer = match command {
            Command::DriverStatement(DriverStatement::Begin(tag)) => {
                return Ok(Response::TransactionStart(Tag::new(tag)));
            }
            Command::DriverStatement(DriverStatement::End(tag)) => {
                self.drop_portals(client.portal_store());
                return Ok(Response::TransactionEnd(Tag::new(tag)));
            }
            Command::DriverStatement(DriverStatement::Done(tag)) => return done(tag),
            Command::DriverStatement(DriverStatement::Deallocate(Some(name))) => {
                if !self.names.lock().statements.contains(name) {
                    return Err(PgWireError::StatementNotFound(name.clone()));
                }
                self.deallocate(client.portal_store(), Some(name));
                return done("DEALLOCATE");
            }
            Command::DriverStatement(DriverStatement::Deallocate(None)) => {
                self.deallocate(client.portal_store(), None);
                return done("DEALLOCATE ALL");
            }
            Command::DriverStatement(DriverStatement::CloseAll) => {
                self.drop_portals(client.portal_store());
                return done("CLOSE CURSOR ALL");
            }
            Command::DriverStatement(DriverStatement::DiscardAll) => {
                self.drop_portals(client.portal_store());
                self.deallocate(client.portal_store(), None);
                return done("DISCARD ALL");
            }
            Command::DriverStatement(DriverStatement::Ask(question)) => question.answer(&self.server_version),
            Command::Control(control) => return done(control::run(self, control).await.map_err(error)?),
            command => run(self, command).await.map_err(error)?,
        };
        for (severity, text) in &answer.notices {
            let notice: NoticeResponse = info(text.clone(), *severity).into();
            client.feed(PgWireBackendMessage::NoticeResponse(notice)).await?;
        }
        answer.into_response(format).map(Response::Query)
    }

    /// Removes the prepared statement of that name, or all.
    fn deallocate<S: PortalStore>(&self, store: &S, name: Option<&str>) {
        let statements = &mut self.names.lock().statements;
        match name {
            Some(name) => {
                statements.remove(name);
                store.rm_statement(name);
            }
            None => std::mem::take(statements).iter().for_each(|name| store.rm_statement(name)),
        }
    }

    fn drop_portals<S: PortalStore>(&self, store: &S) {
        self.names.lock().portals.clear();
        store.clear_portals();
    }

    fn drop_portals_outside_transaction<C: ClientInfo + ClientPortalStore>(&self, client: &C)
    where
        C::PortalStore: PortalStore,
    {
        if client.transaction_status() == TransactionStatus::Idle {
            self.drop_portals(client.portal_store());
        }
    }
}

fn is_full(names: &BTreeSet<String>, most: usize, name: &str) -> bool {
    names.len() >= most && !names.contains(name)
}

/// Sends one of several answers to a Query. Cancel-safe: the client may have received a part of it.
async fn send<C>(client: &mut C, response: Response) -> PgWireResult<()>
where
    C: ClientInfo + Sink<PgWireBackendMessage> + Unpin,
    C::Error: Debug,
    PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
{
    let status = client.transaction_status();
    match response {
        Response::Query(rows) => send_query_response(client, rows, true).await,
        Response::TransactionStart(tag) => {
            client.set_transaction_status(status.to_in_transaction_state());
            send_execution_response(client, tag).await
        }
        Response::TransactionEnd(tag) => {
            client.set_transaction_status(status.to_idle_state());
            send_execution_response(client, tag).await
        }
        Response::Execution(tag) => send_execution_response(client, tag).await,
        _ => Ok(()),
    }
}

/// Reads commands of the extended protocol.
pub struct Parser;

#[async_trait]
impl QueryParser for Parser {
    type Statement = PreparedCommand;

    async fn parse_sql<C>(&self, _: &C, text: &str, _: &[Option<Type>]) -> PgWireResult<Option<PreparedCommand>>
    where
        C: ClientInfo + Unpin + Send + Sync,
    {
        let mut commands = command::parse(text).map_err(error)?;
        if commands.len() > 1 {
            let text = "cannot insert multiple commands into a prepared statement";
            return Err(error(ErrorText::new("42601", text)));
        }
        Ok(commands.pop().map(PreparedCommand))
    }

    fn get_parameter_types(&self, _: &PreparedCommand) -> PgWireResult<Vec<Type>> {
        Ok(Vec::new())
    }

    fn get_result_schema(&self, statement: &PreparedCommand, format: Option<&Format>) -> PgWireResult<Vec<FieldInfo>> {
        fields(&headings_of(&statement.0), format.unwrap_or(&Format::UnifiedText))
    }
}

/// The error as the client receives it.
pub fn error_info(error: PgWireError) -> ErrorInfo {
    let text = match error {
        PgWireError::PortalNotFound(name) => ErrorText::new("34000", format!("portal \"{name}\" does not exist")),
        PgWireError::StatementNotFound(name) => {
            ErrorText::new("26000", format!("prepared statement \"{name}\" does not exist"))
        }
        other => return other.into(),
    };
    info(text, Severity::Error)
}

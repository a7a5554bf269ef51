//! The PostgreSQL frontend/backend protocol, version 3, as far as a relay needs it.
//!
//! Owns the format of frames, startup packets, and the few messages that the proxy reads or writes. Must never buffer a
//! whole message because of its size, nor depend on fences.
//!
//! Protocol facts are from the PostgreSQL documentation, chapter "Frontend/Backend Protocol".

pub mod client_error;
pub mod error;
pub mod frame;
pub mod message;
pub mod startup;

/// Message tags: the byte that identifies the type of a message. PostgreSQL documentation, chapter "Message Formats".
pub mod tag {
    /// Tags of messages from clients.
    pub mod frontend {
        #![allow(missing_docs)]
        pub const BIND: u8 = b'B';
        pub const CLOSE: u8 = b'C';
        pub const COPY_DATA: u8 = b'd';
        pub const COPY_DONE: u8 = b'c';
        pub const COPY_FAIL: u8 = b'f';
        pub const DESCRIBE: u8 = b'D';
        pub const EXECUTE: u8 = b'E';
        pub const FLUSH: u8 = b'H';
        pub const FUNCTION_CALL: u8 = b'F';
        pub const PARSE: u8 = b'P';
        /// A password, or any other response to an authentication request.
        pub const PASSWORD: u8 = b'p';
        pub const QUERY: u8 = b'Q';
        pub const SYNC: u8 = b'S';
        pub const TERMINATE: u8 = b'X';
    }

    /// Tags of messages from servers.
    pub mod backend {
        #![allow(missing_docs)]
        pub const AUTHENTICATION: u8 = b'R';
        pub const BIND_COMPLETE: u8 = b'2';
        pub const CLOSE_COMPLETE: u8 = b'3';
        pub const COMMAND_COMPLETE: u8 = b'C';
        pub const COPY_IN: u8 = b'G';
        pub const COPY_DATA: u8 = b'd';
        pub const DATA_ROW: u8 = b'D';
        pub const EMPTY_QUERY: u8 = b'I';
        pub const ERROR: u8 = b'E';
        pub const KEY_DATA: u8 = b'K';
        pub const NEGOTIATE_VERSION: u8 = b'v';
        pub const NO_DATA: u8 = b'n';
        pub const NOTICE: u8 = b'N';
        pub const NOTIFICATION: u8 = b'A';
        pub const PARAMETER_DESCRIPTION: u8 = b't';
        pub const PARAMETER_STATUS: u8 = b'S';
        pub const PARSE_COMPLETE: u8 = b'1';
        pub const PORTAL_SUSPENDED: u8 = b's';
        pub const READY: u8 = b'Z';
        pub const ROW_DESCRIPTION: u8 = b'T';
    }
}

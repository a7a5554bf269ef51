//! The settings of etcd: each from its flag or variable, else from the file.
//!
//! Owns where a mistake in them is told. Must never print a password.

use super::{ConfigError, Given, Source};
use crate::etcd::{EtcdArguments, EtcdSettings};
use std::collections::HashMap;

/// The keys that have one value each.
pub(super) const SINGLE_KEYS: [&str; 5] = ["etcd_ca", "etcd_cert", "etcd_key", "etcd_user", "etcd_password"];

/// The settings, where there are any.
///
/// # Errors
/// The first one that cannot be used.
pub(super) fn join(
    arguments: EtcdArguments,
    mut file: HashMap<&'static str, Vec<Given>>,
) -> Result<Option<EtcdSettings>, ConfigError> {
    let mut places: HashMap<&'static str, Source> = HashMap::new();
    let mut take = |key: &'static str| -> Vec<String> {
        let mut texts = Vec::new();
        for Given { text, source } in file.remove(key).unwrap_or_default() {
            texts.push(text);
            places.entry(key).or_insert(source);
        }
        texts
    };
    let joined = EtcdArguments {
        etcd: if arguments.etcd.is_empty() { take("etcd") } else { arguments.etcd },
        etcd_ca: arguments.etcd_ca.or_else(|| take("etcd_ca").pop().map(Into::into)),
        etcd_cert: arguments.etcd_cert.or_else(|| take("etcd_cert").pop().map(Into::into)),
        etcd_key: arguments.etcd_key.or_else(|| take("etcd_key").pop().map(Into::into)),
        etcd_user: arguments.etcd_user.or_else(|| take("etcd_user").pop()),
        etcd_password: arguments.etcd_password.or_else(|| take("etcd_password").pop()),
    };
    joined.settings().map_err(|(flag, message)| {
        let key = flag.replace('-', "_");
        places.get(key.as_str()).unwrap_or(&Source::Argument(flag)).fault(message)
    })
}

//! The settings of etcd, told where they were given.
//!
//! Must never print a password.

use super::ConfigError;
use super::given::{Source, Texts};
use crate::etcd::{EtcdArguments, EtcdSettings};

/// The settings, where there are any.
///
/// # Errors
/// The first one that cannot be used.
pub(super) fn read(texts: &Texts) -> Result<Option<EtcdSettings>, ConfigError> {
    let text = |key| texts.one(key).map(|given| given.text.clone());
    let arguments = EtcdArguments {
        etcd: texts.several("etcd").iter().map(|given| given.text.clone()).collect(),
        etcd_ca: text("etcd_ca").map(Into::into),
        etcd_cert: text("etcd_cert").map(Into::into),
        etcd_key: text("etcd_key").map(Into::into),
        etcd_user: text("etcd_user"),
        etcd_password: text("etcd_password"),
    };
    arguments.settings().map_err(|(flag, message)| {
        let of_flag = |key: &&str| key.replace('_', "-") == flag;
        let given = KEYS.iter().find(|key| of_flag(key)).and_then(|key| texts.one(key));
        given.map_or(Source::Argument(flag), |given| given.source.clone()).fault(message)
    })
}

const KEYS: [&str; 6] = ["etcd", "etcd_ca", "etcd_cert", "etcd_key", "etcd_user", "etcd_password"];

//! The value of `lease.fence`: parsed tokens can be formatted again, with the same meaning.

use fencegate_fence::value::FenceValue;

pub fn check(input: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(input) else { return false };
    let Ok(value) = FenceValue::parse(text) else { return false };
    assert_eq!(FenceValue::parse(&format!(" {text}\n")).unwrap(), value);
    let written = match &value {
        FenceValue::Missing => String::new(),
        FenceValue::One(token) => token.to_string(),
        FenceValue::List(list) => {
            let entries: Vec<_> = list.iter().map(|(resource, token)| format!("{resource}={token}")).collect();
            entries.join(",")
        }
    };
    assert_eq!(FenceValue::parse(&written).unwrap(), value);
    match &value {
        FenceValue::Missing => assert_eq!(value.token("scheduler"), None),
        FenceValue::One(token) => assert!(*token > 0 && value.token("scheduler") == Some(*token)),
        FenceValue::List(list) => {
            assert_eq!(list.len(), text.split(',').count());
            assert!(list.iter().all(|(resource, token)| *token > 0 && value.token(resource) == Some(*token)));
            assert_eq!(value.token("no such resource"), None);
        }
    }
    value != FenceValue::Missing
}

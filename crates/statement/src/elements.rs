//! The elements of arrays with one dimension, as `array_out` and `array_send` write them.
//!
//! Must never read an array differently than the server: forms that it does not know, such as several dimensions or
//! bounds, are unknown. Takes linear time, and holds one element at a time.

use super::rows::{Declared, ValueType};
use std::borrow::Cow;

/// An element of an array.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Element<'a> {
    /// As text. The type is known if the array was in binary format.
    Value(Cow<'a, [u8]>, Option<ValueType>),
    Null,
    /// An unquoted `NULL` in an array in text format. With `array_nulls = off`, the server reads it as a string.
    NullWord,
}

/// Calls `each` with the elements of an array in text, until it returns None.
pub(super) fn of_text(array: &[u8], mut each: impl FnMut(Element) -> Option<()>) -> Option<()> {
    let inner = trimmed(array).strip_prefix(b"{")?.strip_suffix(b"}")?;
    if trimmed(inner).is_empty() {
        return Some(());
    }
    let mut rest = inner;
    loop {
        let start = rest.iter().position(|byte| !is_space(*byte)).unwrap_or(rest.len());
        rest = &rest[start..];
        let (element, after) = match rest.strip_prefix(b"\"") {
            Some(quoted) => quoted_element(quoted)?,
            None => bare_element(rest)?,
        };
        each(element)?;
        match after.split_first() {
            None => return Some(()),
            Some((b',', more)) => rest = more,
            Some(_) => return None,
        }
    }
}

/// An element without quotes, and the text after it.
fn bare_element(text: &[u8]) -> Option<(Element<'_>, &[u8])> {
    let end = text.iter().position(|byte| *byte == b',').unwrap_or(text.len());
    let (element, after) = text.split_at(end);
    let element = trimmed(element);
    if element.is_empty() || element.iter().any(|byte| matches!(byte, b'{' | b'}' | b'"' | b'\\')) {
        return None;
    }
    match element.eq_ignore_ascii_case(b"null") {
        true => Some((Element::NullWord, after)),
        false => Some((Element::Value(Cow::Borrowed(element), None), after)),
    }
}

/// An element after its opening quote, and the text after it, without leading spaces.
fn quoted_element(text: &[u8]) -> Option<(Element<'_>, &[u8])> {
    let plain = text.iter().position(|byte| matches!(byte, b'"' | b'\\'))?;
    let (mut element, mut rest) = (Cow::Borrowed(&text[..plain]), &text[plain..]);
    loop {
        match rest.split_first()? {
            (b'"', after) => {
                let end = after.iter().position(|byte| !is_space(*byte)).unwrap_or(after.len());
                return Some((Element::Value(element, None), &after[end..]));
            }
            (b'\\', escaped) => {
                let (byte, after) = escaped.split_first()?;
                element.to_mut().push(*byte);
                rest = after;
            }
            (byte, after) => {
                element.to_mut().push(*byte);
                rest = after;
            }
        }
    }
}

/// Spaces, which `array_in` skips around elements.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

fn trimmed(text: &[u8]) -> &[u8] {
    let start = text.iter().position(|byte| !is_space(*byte)).unwrap_or(text.len());
    let end = text.iter().rposition(|byte| !is_space(*byte)).map_or(start, |last| last + 1);
    &text[start..end]
}

/// Calls `each` with the elements of an array in binary, until it returns None. The array names the type of its elements, which
/// the server compares with the type of the parameter.
pub(super) fn of_binary(array: &[u8], mut each: impl FnMut(Element) -> Option<()>) -> Option<()> {
    let (oid, count, elements) = header(array)?;
    let Declared::As(kind) = Declared::from_oid(oid) else { return None };
    for_each_slice(count, elements, |bytes| match bytes {
        Some(bytes) => {
            let length_fits = match oid {
                21 => bytes.len() == 2,
                23 => bytes.len() == 4,
                20 => bytes.len() == 8,
                _ => true,
            };
            let text = if length_fits { super::rows::received(bytes, kind)? } else { return None };
            each(Element::Value(Cow::Owned(text.into_bytes()), Some(kind)))
        }
        None => each(Element::Null),
    })
}

/// The number of elements of an array in binary, whatever their type.
pub(super) fn count_in_binary(array: &[u8]) -> Option<usize> {
    let mut count = 0;
    let (_, announced, elements) = header(array)?;
    for_each_slice(announced, elements, |_| {
        count += 1;
        Some(())
    })?;
    Some(count)
}

/// The type and number of the elements, and the bytes of all of them.
fn header(array: &[u8]) -> Option<(u32, u32, &[u8])> {
    let (dimensions, rest) = word(array)?;
    let (flags, rest) = word(rest)?;
    let (oid, rest) = word(rest)?;
    match (dimensions, flags) {
        (0, 0 | 1) => Some((oid, 0, rest)),
        (1, 0 | 1) => {
            let (count, rest) = word(rest)?;
            let (_lower_bound, rest) = word(rest)?;
            Some((oid, count, rest))
        }
        _ => None,
    }
}

fn for_each_slice(count: u32, mut rest: &[u8], mut each: impl FnMut(Option<&[u8]>) -> Option<()>) -> Option<()> {
    for _ in 0..count {
        let (length, after) = word(rest)?;
        if length == u32::MAX {
            rest = after;
            each(None)?;
            continue;
        }
        let (bytes, after) = after.split_at_checked(usize::try_from(length).ok()?)?;
        rest = after;
        each(Some(bytes))?;
    }
    rest.is_empty().then_some(())
}

fn word(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (word, rest) = bytes.split_first_chunk()?;
    Some((u32::from_be_bytes(*word), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(element: &Element) -> String {
        match element {
            Element::Value(bytes, _) => format!("<{}>", String::from_utf8_lossy(bytes)),
            Element::Null => "-".to_owned(),
            Element::NullWord => "null".to_owned(),
        }
    }

    fn text(array: &str) -> Option<String> {
        let mut elements = String::new();
        of_text(array.as_bytes(), |element| {
            elements.push_str(&shown(&element));
            Some(())
        })?;
        Some(elements)
    }

    fn binary(array: &[u8]) -> Option<String> {
        let mut elements = String::new();
        of_binary(array, |element| {
            elements.push_str(&shown(&element));
            Some(())
        })?;
        Some(elements)
    }

    #[test]
    fn arrays_in_text() {
        for (array, elements) in [
            ("{}", ""),
            (" { } ", ""),
            ("{1,2}", "<1><2>"),
            (" { 1 ,\t-2 , a b } ", "<1><-2><a b>"),
            (r#"{"","a\"b","\\","x,y","{}"," z ",NULL,"NULL",nuLL}"#, r#"<><a"b><\><x,y><{}>< z >null<NULL>null"#),
            (r#"{"a" , "b" }"#, "<a><b>"),
            ("{é}", "<é>"),
        ] {
            assert_eq!(text(array).as_deref(), Some(elements), "{array}");
        }
        for array in [
            "",
            "{",
            "}",
            "1,2",
            "{1,2",
            "1,2}",
            "{1,}",
            "{,1}",
            "{,}",
            "{{1},{2}}",
            "{{}}",
            "[0:1]={1,2}",
            "{1}{2}",
            "{a\"b}",
            "{\"a\"b}",
            "{\"a}",
            "{a\\,b}",
            "{\"a\\\"}",
            "{\"",
            "{}}",
            "{{}",
            "{1},",
        ] {
            assert_eq!(text(array), None, "{array}");
        }
    }

    fn sent(dimensions: u32, flags: u32, oid: u32, count: u32, elements: &[u8]) -> Vec<u8> {
        let words = [dimensions, flags, oid, count, 1].map(u32::to_be_bytes).concat();
        [&words, elements].concat()
    }

    #[test]
    fn arrays_in_binary() {
        let three = b"\0\0\0\x04\0\0\0\x03";
        let null = b"\xff\xff\xff\xff";
        assert_eq!(binary(&sent(1, 1, 23, 2, &[&three[..], null].concat())).as_deref(), Some("<3>-"));
        assert_eq!(binary(&sent(1, 0, 25, 1, b"\0\0\0\x01a")).as_deref(), Some("<a>"));
        let empty = [0, 0, 23].map(u32::to_be_bytes).concat();
        assert_eq!(binary(&empty).as_deref(), Some(""));
        for array in [
            sent(1, 0, 20, 1, three),
            sent(1, 0, 21, 1, three),
            sent(1, 0, 2950, 1, three),
            sent(1, 0, 701, 1, three),
            sent(1, 2, 23, 1, three),
            sent(2, 0, 23, 1, three),
            sent(u32::MAX, 0, 23, 1, three),
            sent(1, 0, 23, 2, three),
            sent(1, 0, 23, 0, three),
            sent(1, 0, 23, u32::MAX, three),
            sent(1, 0, 23, 1, b"\0\0\0\x05\0\0\0\x03"),
            sent(1, 0, 23, 1, b"\x80\0\0\0"),
            sent(1, 0, 25, 1, b"\0\0\0\x01\xff"),
            [&empty[..], b"\0"].concat(),
            b"\0\0\0".to_vec(),
        ] {
            assert_eq!(binary(&array), None, "{}", array.escape_ascii());
        }
        assert_eq!(count_in_binary(&sent(1, 0, 701, 2, &[&three[..], null].concat())), Some(2));
        assert_eq!(count_in_binary(&sent(1, 0, 701, 3, three)), None);
    }
}

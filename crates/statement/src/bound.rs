//! The values that parameters are bound to, and the different values of a column.
//!
//! Must never
//! - take a value for one of another type than the server does: a value whose type is not certain is unknown;
//! - take time that grows with the square of the number of values;
//! - read more of arrays for one statement than [`Budget`] permits, however many writes depend on them.

use super::elements::{Element, count_in_binary, of_binary, of_text};
use super::rows::{ColumnValue, Declared, ElementType, LONGEST_KEY, MOST_VALUES, ValueType};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;

/// The value of a parameter.
#[derive(Clone, Copy, Debug)]
pub enum Argument<'v> {
    /// NULL.
    Null,
    /// In text, in UTF-8.
    Text(&'v [u8]),
    /// In the binary form of its type.
    Binary(&'v [u8]),
    /// A constant of an EXECUTE.
    Constant(&'v ColumnValue),
    /// Any value.
    Unknown,
}

/// An array that is bound to `$number` later.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ArrayParameter {
    /// From 1.
    pub number: usize,
    /// The type of the elements, by a cast; `None` for the column's own type.
    pub cast: Option<ValueType>,
    /// As in [`ColumnValue::Parameter`].
    pub is_alone: bool,
    /// How the statement uses the elements.
    pub purpose: Purpose,
}

/// How a statement uses the elements of an array.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Purpose {
    /// It compares them. NULL equals nothing.
    Compare,
    /// It stores them, in rows with those of these other arrays. A row without an element gets NULL.
    Store(Vec<Beside>),
}

/// An array whose elements are stored in the same rows as those of another one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Beside {
    /// An array with this number of elements.
    Count(usize),
    /// An array that is bound later. `is_alone`: as in [`ColumnValue::Parameter`].
    #[expect(missing_docs, reason = "the comment of the variant covers its fields")]
    Parameter { number: usize, is_alone: bool },
}

/// The remaining amount of array data to read for one statement: each write reads its arrays again. Keys in further
/// arrays are unknown.
#[derive(Debug)]
pub(super) struct Budget {
    bytes: usize,
    elements: usize,
}

impl Default for Budget {
    fn default() -> Self {
        Budget { bytes: 4 * 1024 * 1024, elements: 10 * MOST_VALUES }
    }
}

impl Beside {
    pub(super) fn parameter(&self) -> Option<usize> {
        match self {
            Beside::Count(_) => None,
            Beside::Parameter { number, .. } => Some(*number),
        }
    }

    fn count(&self, declared: &[Declared], given: &[Argument], budget: &mut Budget) -> Option<usize> {
        let (number, is_alone) = match self {
            Beside::Count(count) => return Some(*count),
            Beside::Parameter { number, is_alone } => (*number, *is_alone),
        };
        let (declared, given) = parameter(number, declared, given)?;
        match declared {
            Declared::Array(_) => given.count(budget),
            Declared::Not if is_alone => given.count(budget),
            _ => None,
        }
    }
}

fn parameter<'v>(number: usize, declared: &[Declared], given: &[Argument<'v>]) -> Option<(Declared, Argument<'v>)> {
    let index = number.checked_sub(1)?;
    Some((declared.get(index).copied().unwrap_or_default(), *given.get(index)?))
}

impl Argument<'_> {
    fn value(self) -> Option<ColumnValue> {
        match self {
            Argument::Text(bytes) => ColumnValue::from_text(bytes),
            Argument::Binary(bytes) => ColumnValue::from_binary(bytes),
            Argument::Constant(value) => Some(value.clone()),
            Argument::Null | Argument::Unknown => None,
        }
    }

    /// Calls `each` with the elements of the array until it returns None. NULL has no elements.
    fn elements(self, budget: &mut Budget, mut each: impl FnMut(Element) -> Option<()>) -> Option<()> {
        let Budget { bytes, elements } = budget;
        *bytes = bytes.checked_sub(self.length())?;
        let each = |element: Element| {
            *elements = elements.checked_sub(1)?;
            each(element)
        };
        match self {
            Argument::Null => Some(()),
            Argument::Text(bytes) => of_text(bytes, each),
            Argument::Binary(bytes) => of_binary(bytes, each),
            Argument::Constant(ColumnValue::Literal { text, kind: None }) => of_text(text.as_bytes(), each),
            Argument::Constant(_) | Argument::Unknown => None,
        }
    }

    fn length(self) -> usize {
        match self {
            Argument::Text(bytes) | Argument::Binary(bytes) => bytes.len(),
            Argument::Constant(value) => value.text().map_or(0, str::len),
            Argument::Null | Argument::Unknown => 0,
        }
    }

    fn count(self, budget: &mut Budget) -> Option<usize> {
        if let Argument::Binary(bytes) = self {
            return count_in_binary(bytes);
        }
        let mut count = 0;
        self.elements(budget, |_| {
            count += 1;
            Some(())
        })?;
        Some(count)
    }
}

impl ColumnValue {
    /// Adds the values with these parameters; None if one is unknown.
    pub(super) fn bind(
        &self,
        declared: &[Declared],
        given: &[Argument],
        budget: &mut Budget,
        bound: &mut Distinct,
    ) -> Option<()> {
        match self {
            ColumnValue::Parameter { number, cast, is_alone } => {
                let (declared, given) = parameter(*number, declared, given)?;
                let kind = match declared {
                    Declared::As(kind) => Some(kind),
                    Declared::Not if *is_alone => *cast,
                    Declared::Not | Declared::Array(_) | Declared::Otherwise => return None,
                };
                let given = given.value()?;
                bound.add(match kind {
                    Some(kind) => ColumnValue::Literal { text: given.in_column(kind)?, kind: cast.or(Some(kind)) },
                    None => given,
                });
            }
            ColumnValue::Elements(array) => array.bind(declared, given, budget, bound)?,
            value => bound.add(value.clone()),
        }
        Some(())
    }
}

impl ArrayParameter {
    pub(super) fn beside(&self) -> &[Beside] {
        match &self.purpose {
            Purpose::Compare => &[],
            Purpose::Store(beside) => beside,
        }
    }

    fn bind(&self, declared: &[Declared], given: &[Argument], budget: &mut Budget, bound: &mut Distinct) -> Option<()> {
        let ArrayParameter { number, cast, is_alone, purpose } = self;
        let (of, array) = parameter(*number, declared, given)?;
        let kind = match of {
            Declared::Array(ElementType::Key(kind)) => Some(kind),
            Declared::Not if *is_alone => *cast,
            Declared::Not | Declared::As(_) | Declared::Array(_) | Declared::Otherwise => return None,
        };
        let mut count = 0;
        array.elements(budget, |element| {
            count += 1;
            if let Some(value) = element_value(element, kind, *cast, *purpose == Purpose::Compare)? {
                bound.add(value);
            }
            Some(())
        })?;
        let mut is_as_long =
            |beside: &Beside| beside.count(declared, given, budget).is_some_and(|other| other <= count);
        self.beside().iter().all(&mut is_as_long).then_some(())
    }
}

/// The value of an array's element, in the array's type and with the type of a cast. `Some(None)`: the element is
/// compared, and is NULL. `None`: the value is unknown.
pub(super) fn element_value(
    element: Element,
    kind: Option<ValueType>,
    cast: Option<ValueType>,
    is_compared: bool,
) -> Option<Option<ColumnValue>> {
    let (bytes, sent) = match element {
        Element::Value(bytes, sent) => (bytes, sent),
        Element::Null => return is_compared.then_some(None),
        Element::NullWord if is_compared => {
            let is_null = matches!(kind, Some(ValueType::Integer | ValueType::Uuid));
            return Some((!is_null).then_some(ColumnValue::NullWord));
        }
        Element::NullWord => return None,
    };
    let is_other = sent.zip(kind).is_some_and(|(sent, kind)| sent != kind);
    if bytes.len() > LONGEST_KEY || is_other {
        return None;
    }
    let text = String::from_utf8(bytes.into_owned()).ok()?;
    let Some(kind) = sent.or(kind) else { return Some(Some(ColumnValue::Literal { text, kind: None })) };
    let value = ColumnValue::Literal { text, kind: Some(kind) };
    Some(Some(ColumnValue::Literal { text: value.in_column(kind)?, kind: cast.or(Some(kind)) }))
}

/// Number of values up to which comparing all of them is faster than hashing.
const FEW: usize = 16;

/// Different values, at most [`MOST_VALUES`]: if there are more, only [`ColumnValue::TooMany`].
#[derive(Debug, Default)]
pub struct Distinct {
    values: Vec<ColumnValue>,
    /// Used once there are more than a few.
    seen: HashSet<ColumnValue>,
}

impl Distinct {
    /// Adds a value unless it is present.
    pub fn add(&mut self, value: ColumnValue) {
        if self.is_too_many() || self.contains(&value) {
            return;
        }
        if value == ColumnValue::TooMany || self.values.len() == MOST_VALUES {
            *self = Distinct { values: vec![ColumnValue::TooMany], seen: HashSet::new() };
            return;
        }
        if self.values.len() == FEW {
            self.seen.extend(self.values.iter().cloned());
        }
        if self.values.len() >= FEW {
            self.seen.insert(value.clone());
        }
        self.values.push(value);
    }

    /// The values.
    pub fn list(mut self) -> Vec<ColumnValue> {
        // They may be cached for long, and are counted by their length.
        self.values.shrink_to_fit();
        self.values
    }

    fn is_too_many(&self) -> bool {
        self.values.first() == Some(&ColumnValue::TooMany)
    }

    fn contains(&self, value: &ColumnValue) -> bool {
        if self.values.len() > FEW { self.seen.contains(value) } else { self.values.contains(value) }
    }
}

impl FromIterator<ColumnValue> for Distinct {
    fn from_iter<I: IntoIterator<Item = ColumnValue>>(values: I) -> Self {
        let mut distinct = Distinct::default();
        values.into_iter().for_each(|value| distinct.add(value));
        distinct
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(number: usize) -> ColumnValue {
        ColumnValue::Literal { text: number.to_string(), kind: None }
    }

    #[test]
    fn values_are_kept_once_and_in_their_order() {
        for count in [1, FEW, FEW + 1, MOST_VALUES] {
            let values: Distinct = (0..count).chain(0..count).map(number).collect();
            assert_eq!(values.list(), (0..count).map(number).collect::<Vec<_>>());
        }
    }

    #[test]
    fn too_many_values_stand_for_any() {
        let more: Distinct = (0..=MOST_VALUES).chain([7]).map(number).collect();
        assert_eq!(more.list(), [ColumnValue::TooMany]);
        let joined: Distinct = [number(1), ColumnValue::TooMany, number(2)].into_iter().collect();
        assert_eq!(joined.list(), [ColumnValue::TooMany]);
    }
}

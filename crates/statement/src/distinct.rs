//! The different values of a column, in their order.
//!
//! Must never take time that grows with the square of their number.

use super::rows::{ColumnValue, MOST_VALUES};
use std::collections::HashSet;

/// Number of values up to which comparing all of them is faster than hashing.
const FEW: usize = 16;

/// Different values, at most [`MOST_VALUES`]: if there are more, only [`ColumnValue::TooMany`].
#[derive(Debug, Default)]
pub struct Distinct {
    values: Vec<ColumnValue>,
    /// Set if there are more than a few.
    seen: HashSet<ColumnValue>,
}

impl Distinct {
    /// Adds a value, unless it is there.
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
        // They may be remembered for long, and count by their length.
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

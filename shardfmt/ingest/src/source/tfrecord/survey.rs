//! The facts that the features of all records have in common, and the columns that they make.

use std::collections::BTreeMap;

use arrow::datatypes::DataType;

use super::column::{Column, Each};
use super::example::{Entry, Example, Feature, Kind};

/// The features of some records.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Survey {
    pub(super) records: u64,
    features: BTreeMap<String, Seen>,
}

/// The known facts about a feature.
#[derive(Clone, Debug, PartialEq)]
struct Seen {
    /// How many records have it.
    records: u64,
    is_list: bool,
    /// The type of its values; `None` if there are none.
    kind: Option<Kind>,
    /// How many values it has, or each of its steps.
    lengths: Lengths,
}

/// How many values there are in each of several places.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Lengths {
    #[default]
    Unknown,
    All(usize),
    Varying,
}

impl Lengths {
    fn and(self, other: Lengths) -> Lengths {
        match (self, other) {
            (Lengths::Unknown, known) | (known, Lengths::Unknown) => known,
            (Lengths::All(a), Lengths::All(b)) if a == b => Lengths::All(a),
            _ => Lengths::Varying,
        }
    }
}

impl Seen {
    fn of(entry: Entry<'_>) -> Seen {
        let mut seen = Seen { records: 1, is_list: false, kind: None, lengths: Lengths::Unknown };
        let mut add = |feature: Feature<'_>| {
            seen.kind = seen.kind.or(feature.kind);
            seen.lengths = seen.lengths.and(Lengths::All(feature.count));
        };
        match entry {
            Entry::Feature(feature) => add(feature),
            Entry::Steps(steps) => {
                let looked_through = steps.each(|step| {
                    add(step);
                    Ok(())
                });
                debug_assert_eq!(looked_through, Ok(()));
                seen.is_list = true;
            }
        }
        seen
    }

    fn fits(&self, other: &Seen, name: &str) -> Result<(), String> {
        let named = |is_list| if is_list { "a feature list" } else { "a feature" };
        if self.is_list != other.is_list {
            let (found, known) = (named(other.is_list), named(self.is_list));
            return Err(format!("has {name:?} as {found}, and records before as {known}"));
        }
        match (self.kind, other.kind) {
            (Some(known), Some(found)) if known != found => {
                let (found, known) = (found.name(), known.name());
                Err(format!("has {name:?} as {found}, and records before as {known}"))
            }
            _ => Ok(()),
        }
    }

    fn merge(&mut self, other: &Seen) {
        self.records += other.records;
        self.kind = self.kind.or(other.kind);
        self.lengths = self.lengths.and(other.lengths);
    }
}

impl Survey {
    /// Takes in a record; nothing of it if some feature does not fit those before. Features for which `is_asked_for` is false
    /// fit in any case.
    pub(super) fn add(
        &mut self,
        example: &Example<'_>,
        is_asked_for: impl Fn(&str) -> bool,
    ) -> Result<(), String> {
        for (name, entry) in example.entries().filter(|(name, _)| is_asked_for(name)) {
            if let Some(known) = self.features.get(name) {
                known.fits(&Seen::of(entry), name)?;
            }
        }
        self.records += 1;
        for (name, entry) in example.entries() {
            self.merge_one(name, &Seen::of(entry));
        }
        Ok(())
    }

    /// Whether the features of other records fit these.
    pub(super) fn fits(&self, other: &Survey, is_asked_for: impl Fn(&str) -> bool) -> bool {
        other
            .features
            .iter()
            .filter(|(name, _)| is_asked_for(name))
            .all(|(name, seen)| self.features.get(name).is_none_or(|known| known.fits(seen, name).is_ok()))
    }

    pub(super) fn merge(&mut self, other: &Survey) {
        self.records += other.records;
        other.features.iter().for_each(|(name, seen)| self.merge_one(name, seen));
    }

    fn merge_one(&mut self, name: &str, seen: &Seen) {
        match self.features.get_mut(name) {
            Some(known) => known.merge(seen),
            None => _ = self.features.insert(name.to_owned(), seen.clone()),
        }
    }

    /// How many features there are.
    pub(super) fn len(&self) -> usize {
        self.features.len()
    }

    /// The columns, by name. A feature list without any value is one of bytes.
    pub(super) fn columns(&self) -> Vec<Column> {
        let column = |(name, seen): (&String, &Seen)| {
            let kind = seen.kind.unwrap_or(Kind::Bytes);
            let each = match seen.lengths {
                Lengths::All(1) => Each::One,
                Lengths::All(length) if length > 0 && kind != Kind::Bytes => {
                    i32::try_from(length).map_or(Each::List, Each::Tensor)
                }
                _ => Each::List,
            };
            let item = match kind {
                Kind::Bytes => DataType::Binary,
                Kind::Float => DataType::Float32,
                Kind::Int64 => DataType::Int64,
            };
            let nullable = seen.records < self.records;
            Column { name: name.clone(), nullable, is_list: seen.is_list, kind, each, item }
        };
        self.features.iter().map(column).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lengths() -> impl Strategy<Value = Lengths> {
        prop_oneof![Just(Lengths::Unknown), (0..3usize).prop_map(Lengths::All), Just(Lengths::Varying)]
    }

    proptest! {
        /// So the columns do not depend on where blocks end.
        #[test]
        fn lengths_merged_in_parts_are_those_of_the_whole(a in lengths(), b in lengths(), c in lengths()) {
            prop_assert_eq!(a.and(b).and(c), a.and(b.and(c)));
            prop_assert_eq!(a.and(b), b.and(a));
        }
    }
}

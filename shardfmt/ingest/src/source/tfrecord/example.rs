//! `tf.train.Example` and `tf.train.SequenceExample`: named features, each some values of one type. Pure functions on bytes
//! from outside.

use super::wire::{Reason, Value, fields, varint};

/// More features than this are taken for a mistake: names that are data.
pub(super) const MOST_FEATURES: usize = 1 << 16;

/// The type of a feature's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Bytes,
    Float,
    Int64,
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Bytes => "bytes",
            Kind::Float => "float",
            Kind::Int64 => "int64",
        }
    }
}

/// The values of a feature, which were looked through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Feature<'r> {
    /// `None` of a feature without values of any type.
    pub(super) kind: Option<Kind>,
    /// How many values.
    pub(super) count: usize,
    /// Their message.
    list: &'r [u8],
}

/// The features of a feature list, one for each step, which were looked through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Steps<'r>(&'r [u8]);

/// The content under one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry<'r> {
    Feature(Feature<'r>),
    Steps(Steps<'r>),
}

/// All content of a record, sorted by name: the order in a record has no meaning.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Example<'r> {
    entries: Vec<(&'r str, Entry<'r>)>,
}

impl<'r> Example<'r> {
    /// Reads a record to its end.
    pub(super) fn parse(record: &'r [u8]) -> Result<Example<'r>, String> {
        let broken = |reason: Reason| format!("is no tf.train.Example ({reason})");
        let mut example = Example::default();
        for field in fields(record) {
            match field.map_err(broken)? {
                // The features of an Example, and of a SequenceExample its context.
                (1, Value::Bytes(features)) => example.add(features, |message| {
                    Feature::parse(message).map(Entry::Feature).map_err(str::to_owned)
                })?,
                (2, Value::Bytes(lists)) => example
                    .add(lists, |message| Steps::parse(message).map(Entry::Steps).map_err(str::to_owned))?,
                (1 | 2, _) => return Err(broken("its features are no message")),
                _ => {}
            }
        }
        example.entries.sort_by(|a, b| a.0.cmp(b.0));
        match example.entries.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            Some(pair) => Err(format!("has feature {:?} twice", pair[0].0)),
            None => Ok(example),
        }
    }

    /// Adds the entries of a map.
    fn add(
        &mut self,
        map: &'r [u8],
        parse: impl Fn(&'r [u8]) -> Result<Entry<'r>, String>,
    ) -> Result<(), String> {
        let broken = |reason: Reason| format!("is no tf.train.Example ({reason})");
        for field in fields(map) {
            let (1, Value::Bytes(entry)) = field.map_err(broken)? else { continue };
            let (mut name, mut message): (&[u8], &[u8]) = (&[], &[]);
            for field in fields(entry) {
                match field.map_err(broken)? {
                    (1, Value::Bytes(bytes)) => name = bytes,
                    (2, Value::Bytes(bytes)) => message = bytes,
                    _ => {}
                }
            }
            let name = str::from_utf8(name).map_err(|_| broken("a feature's name is not UTF-8"))?;
            let entry =
                parse(message).map_err(|reason| format!("has a broken feature {name:?}: {reason}"))?;
            if self.entries.len() == MOST_FEATURES {
                return Err(format!("has more than {MOST_FEATURES} features; are their names data?"));
            }
            self.entries.push((name, entry));
        }
        Ok(())
    }

    /// Everything that has a value of some type, by name.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&'r str, Entry<'r>)> {
        let has_values = |entry: &Entry<'_>| !matches!(entry, Entry::Feature(Feature { kind: None, .. }));
        self.entries.iter().copied().filter(move |(_, entry)| has_values(entry))
    }

    /// The entry of this name, if it has one.
    pub(super) fn get(&self, name: &str) -> Option<Entry<'r>> {
        let at = self.entries.binary_search_by(|(other, _)| (*other).cmp(name)).ok()?;
        match self.entries[at].1 {
            Entry::Feature(Feature { kind: None, .. }) => None,
            entry => Some(entry),
        }
    }
}

impl<'r> Feature<'r> {
    fn parse(message: &'r [u8]) -> Result<Feature<'r>, Reason> {
        let mut found = None;
        for field in fields(message) {
            let (number, value) = field?;
            let kind = match number {
                1 => Kind::Bytes,
                2 => Kind::Float,
                3 => Kind::Int64,
                _ => continue,
            };
            let Value::Bytes(list) = value else { return Err("its values are no message") };
            if found.replace((kind, list)).is_some() {
                return Err("it has several lists of values");
            }
        }
        let Some((kind, list)) = found else { return Ok(Feature { kind: None, count: 0, list: &[] }) };
        let mut feature = Feature { kind: Some(kind), count: 0, list };
        let mut count = 0;
        match kind {
            Kind::Bytes => feature.each_bytes(|_| count += 1)?,
            Kind::Float => feature.each_floats(|floats| count += floats.len() / 4)?,
            Kind::Int64 => feature.each_int(|_| count += 1)?,
        }
        feature.count = count;
        Ok(feature)
    }

    /// Visits each value of type bytes.
    pub(super) fn each_bytes(&self, mut visit: impl FnMut(&'r [u8])) -> Result<(), Reason> {
        for field in fields(self.list) {
            match field? {
                (1, Value::Bytes(bytes)) => visit(bytes),
                (1, _) => return Err("a value of it is not of type bytes"),
                _ => {}
            }
        }
        Ok(())
    }

    /// Visits the values of type float, some at a time, as their bytes.
    pub(super) fn each_floats(&self, mut visit: impl FnMut(&[u8])) -> Result<(), Reason> {
        for field in fields(self.list) {
            match field? {
                (1, Value::Bytes(packed)) if packed.len().is_multiple_of(4) => visit(packed),
                (1, Value::Fixed32(one)) => visit(&one),
                (1, _) => return Err("a value of it is not of type float"),
                _ => {}
            }
        }
        Ok(())
    }

    /// Visits each value of type int64.
    pub(super) fn each_int(&self, mut visit: impl FnMut(i64)) -> Result<(), Reason> {
        for field in fields(self.list) {
            match field? {
                (1, Value::Bytes(mut packed)) => {
                    while !packed.is_empty() {
                        visit(varint(&mut packed)?.cast_signed());
                    }
                }
                (1, Value::Varint(one)) => visit(one.cast_signed()),
                (1, _) => return Err("a value of it is not of type int64"),
                _ => {}
            }
        }
        Ok(())
    }
}

impl<'r> Steps<'r> {
    fn parse(message: &'r [u8]) -> Result<Steps<'r>, Reason> {
        let steps = Steps(message);
        let mut kind = None;
        steps.each(|step| match (kind, step.kind) {
            (Some(known), Some(found)) if known != found => Err("its steps have values of several types"),
            _ => {
                kind = kind.or(step.kind);
                Ok(())
            }
        })?;
        Ok(steps)
    }

    /// Visits the feature of each step.
    pub(super) fn each(
        &self,
        mut visit: impl FnMut(Feature<'r>) -> Result<(), Reason>,
    ) -> Result<(), Reason> {
        for field in fields(self.0) {
            match field? {
                (1, Value::Bytes(message)) => visit(Feature::parse(message)?)?,
                (1, _) => return Err("a step of it is no message"),
                _ => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Walks through all that a record holds.
    fn visit(record: &[u8]) -> Result<usize, String> {
        let mut values = 0;
        for (name, entry) in Example::parse(record)?.entries() {
            assert_eq!(Example::parse(record)?.get(name), Some(entry));
            let mut of = |feature: Feature<'_>| {
                let mut count = 0;
                match feature.kind {
                    Some(Kind::Bytes) => feature.each_bytes(|_| count += 1)?,
                    Some(Kind::Float) => feature.each_floats(|floats| count += floats.len() / 4)?,
                    Some(Kind::Int64) => feature.each_int(|_| count += 1)?,
                    None => {}
                }
                assert_eq!(count, feature.count);
                values += count;
                Ok(())
            };
            match entry {
                Entry::Feature(feature) => of(feature),
                Entry::Steps(steps) => steps.each(of),
            }
            .expect("looked through before");
        }
        Ok(values)
    }

    #[test]
    fn numbers_are_read_packed_or_one_by_one() {
        let example = |list: &[u8]| {
            let feature = [&[0x1a, list.len() as u8], list].concat();
            let entry = [&[0x0a, 1, b'x', 0x12, feature.len() as u8][..], &feature].concat();
            let map = [&[0x0a, entry.len() as u8][..], &entry].concat();
            [&[0x0a, map.len() as u8][..], &map].concat()
        };
        let ints = |list: &[u8]| {
            let record = example(list);
            let Some(Entry::Feature(feature)) = Example::parse(&record).unwrap().get("x") else {
                panic!("no x")
            };
            let mut found = Vec::new();
            feature.each_int(|number| found.push(number)).unwrap();
            assert_eq!(found.len(), feature.count);
            found
        };
        assert_eq!(ints(&[0x0a, 3, 7, 0x96, 1]), [7, 150]);
        assert_eq!(ints(&[0x08, 7, 0x08, 0x96, 1]), [7, 150]);
        assert_eq!(ints(&[0x0a, 1, 7, 0x08, 9]), [7, 9]);
        assert_eq!(ints(&[0x0a, 10, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1]), [-1]);
        assert_eq!(ints(&[]), [0; 0]);
        let refusal = |list: &[u8]| Example::parse(&example(list)).unwrap_err();
        assert!(refusal(&[0x0a, 1, 0x96]).contains("broken feature \"x\": a field of it is cut off"));
        assert!(refusal(&[0x0d, 0, 0, 0, 0]).contains("not of type int64"));
        let twice = [example(&[0x08, 7]), example(&[0x08, 7])].concat();
        assert!(Example::parse(&twice).unwrap_err().contains("has feature \"x\" twice"));
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_parser_panic(
            pieces in prop::collection::vec(prop_oneof![
                any::<u8>().prop_map(|byte| vec![byte]),
                prop::sample::select(vec![vec![0x0a, 4], vec![0x12, 6], vec![0x1a, 3], vec![0x0a, 1, b'x'], vec![0x0d, 0, 0, 0, 0]]),
            ], 0..40),
        ) {
            let _ = visit(&pieces.concat());
        }
    }
}

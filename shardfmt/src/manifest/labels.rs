//! How often labels occur in shards: the same few names in each of very many, kept once.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, Visitor};

use crate::shard::Labels;

/// The names that were seen so far.
#[derive(Default)]
pub(super) struct Names(BTreeSet<Arc<str>>);

impl Names {
    /// Reads a JSON object, label to number of rows.
    pub(super) fn labels(&mut self, json: &str) -> serde_json::Result<Labels> {
        let mut json = serde_json::Deserializer::from_str(json);
        let labels = LabelsOf(self).deserialize(&mut json)?;
        json.end()?;
        Ok(labels)
    }

    fn shared(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.0.get(name) {
            return known.clone();
        }
        let name: Arc<str> = name.into();
        self.0.insert(name.clone());
        name
    }
}

struct LabelsOf<'a>(&'a mut Names);

impl<'de> DeserializeSeed<'de> for LabelsOf<'_> {
    type Value = Labels;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Labels, D::Error> {
        json.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for LabelsOf<'_> {
    type Value = Labels;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of labels and counts")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Labels, A::Error> {
        let mut labels = Labels::new();
        while let Some(name) = map.next_key_seed(NameOf(self.0))? {
            labels.insert(name, map.next_value()?);
        }
        Ok(labels)
    }
}

struct NameOf<'a>(&'a mut Names);

impl<'de> DeserializeSeed<'de> for NameOf<'_> {
    type Value = Arc<str>;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Arc<str>, D::Error> {
        json.deserialize_str(self)
    }
}

impl Visitor<'_> for NameOf<'_> {
    type Value = Arc<str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a label")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Arc<str>, E> {
        Ok(self.0.shared(name))
    }
}

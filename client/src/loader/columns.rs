//! The columns that sources read together must have in common. Pure: schemas in, a schema or a refusal out.

use arrow::datatypes::{Field, FieldRef, Schema};

use super::error::{LoadError, OtherColumns};

/// The metadata that describes the values of tensors, and of other extensions.
const MEANING: [&str; 2] = ["ARROW:extension:name", "ARROW:extension:metadata"];

/// The columns of several sources, each with its name in messages: those of the first, nullable where they
/// are in any.
///
/// # Errors
/// [`LoadError::Columns`] for the first source that has other columns, by name, order, type or shape of a tensor. What else
/// is noted with a column may differ. [`LoadError::Config`] if there is no source.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shardd_client::arrow::datatypes::{DataType, Field, Schema};
/// use shardd_client::loader::{LoadError, common_columns};
///
/// let schema = |kind, nullable| Schema::new(vec![Field::new("n", kind, nullable)]);
/// let (own, nullable) = (schema(DataType::Int64, false), schema(DataType::Int64, true));
/// let common = common_columns([("a".into(), &own), ("b".into(), &nullable)])?;
/// assert!(common.field(0).is_nullable());
///
/// let text = schema(DataType::Utf8, false);
/// let refused = common_columns([("a".into(), &own), ("b".into(), &text)]);
/// assert!(matches!(refused, Err(LoadError::Columns(_))));
/// # Ok(())
/// # }
/// ```
pub fn common<'a>(sources: impl IntoIterator<Item = (String, &'a Schema)>) -> Result<Schema, LoadError> {
    let mut sources = sources.into_iter();
    let Some((first, schema)) = sources.next() else {
        return Err(LoadError::Config("there is no source to read: name at least one".into()));
    };
    let mut fields: Vec<Field> = schema.fields().iter().map(|field| Field::clone(field)).collect();
    for (other, theirs) in sources {
        if let Some(difference) = difference(schema, theirs) {
            return Err(LoadError::Columns(Box::new(OtherColumns { other, first, difference })));
        }
        for (field, their) in fields.iter_mut().zip(theirs.fields()) {
            field.set_nullable(field.is_nullable() || their.is_nullable());
        }
    }
    Ok(Schema::new_with_metadata(fields, schema.metadata().clone()))
}

/// What `theirs` has that `ours` has not, or otherwise.
fn difference(ours: &Schema, theirs: &Schema) -> Option<String> {
    let lacks = |one: &Schema, other: &Schema| {
        one.fields()
            .iter()
            .map(|field| field.name().clone())
            .find(|name| other.field_with_name(name).is_err())
    };
    if let Some(name) = lacks(ours, theirs) {
        return Some(format!("has no column {name:?}, which is"));
    }
    if let Some(name) = lacks(theirs, ours) {
        return Some(format!("has a column {name:?}, which is not"));
    }
    let told = |field: &FieldRef| {
        let meaning = MEANING.iter().filter_map(|name| field.metadata().get(name));
        [vec![field.data_type().to_string()], meaning.cloned().collect()].concat().join(" ")
    };
    ours.fields().iter().zip(theirs.fields()).enumerate().find_map(|(at, (our, their))| {
        if our.name() != their.name() {
            return Some(format!("has {:?} as column {at}, which is {:?}", their.name(), our.name()));
        }
        let (our_type, their_type) = (told(our), told(their));
        (our_type != their_type)
            .then(|| format!("has column {:?} as {their_type}, which is {our_type}", our.name()))
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use arrow::datatypes::DataType;

    use super::*;

    fn schema(columns: &[(&str, DataType, bool)]) -> Schema {
        Schema::new(
            columns
                .iter()
                .map(|(name, of, nullable)| Field::new(*name, of.clone(), *nullable))
                .collect::<Vec<_>>(),
        )
    }

    fn of(sources: &[&Schema]) -> Result<Schema, String> {
        let named = sources.iter().enumerate().map(|(at, schema)| (format!("source {at}"), *schema));
        common(named).map_err(|error| error.to_string())
    }

    #[test]
    fn a_column_is_nullable_if_it_is_so_in_any_source_and_notes_are_those_of_the_first() {
        let noted = |note: &str| HashMap::from([("shardd.classes".to_owned(), note.to_owned())]);
        let field = |nullable, note| {
            Schema::new(vec![Field::new("a", DataType::Int8, nullable).with_metadata(noted(note))])
        };
        let found = of(&[&field(false, "x"), &field(true, "y")]).expect("the same columns");
        assert!(found.field(0).is_nullable());
        assert_eq!(found.field(0).metadata(), &noted("x"));
    }

    #[test]
    fn sources_of_other_columns_are_refused_with_the_column_and_the_way_out() {
        let ours = schema(&[("a", DataType::Int8, false), ("b", DataType::Utf8, true)]);
        let refusals = [
            (schema(&[("a", DataType::Int8, false)]), "has no column \"b\", which is in source 0: "),
            (
                schema(&[
                    ("a", DataType::Int8, false),
                    ("b", DataType::Utf8, true),
                    ("c", DataType::Utf8, true),
                ]),
                "has a column \"c\", which is not in source 0: ",
            ),
            (
                schema(&[("b", DataType::Utf8, true), ("a", DataType::Int8, false)]),
                "has \"b\" as column 0, which is \"a\" in source 0: ",
            ),
            (
                schema(&[("a", DataType::Int16, false), ("b", DataType::Utf8, true)]),
                "has column \"a\" as Int16, which is Int8 in source 0: ",
            ),
        ];
        for (theirs, reason) in refusals {
            let said = of(&[&ours, &ours, &theirs]).expect_err("other columns");
            assert!(said.starts_with(&format!("source 2 {reason}")), "{said}");
            assert!(said.contains("ingest one of the two again"), "{said}");
        }
        assert!(of(&[]).is_err());
    }

    #[test]
    fn tensors_of_one_type_and_another_shape_are_other_columns() {
        let tensor = |shape: &str| {
            let meaning = [MEANING[0], MEANING[1]]
                .map(str::to_owned)
                .into_iter()
                .zip(["arrow.fixed_shape_tensor".to_owned(), format!("{{\"shape\":{shape}}}")]);
            Schema::new(vec![
                Field::new("a", DataType::Int8, false).with_metadata(meaning.collect::<HashMap<_, _>>()),
            ])
        };
        let said = of(&[&tensor("[2,3]"), &tensor("[3,2]")]).expect_err("other shapes");
        assert!(said.contains("[3,2]") && said.contains("[2,3]"), "{said}");
    }
}

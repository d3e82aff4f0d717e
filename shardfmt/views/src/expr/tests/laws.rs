//! Laws: canonical texts, record batches of any size, Arrow types of any kind, and texts without sense.

use arrow::compute::concat;
use proptest::prelude::*;

use super::*;

fn number() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        prop::sample::select(vec!["i", "small", "u", "f", "g", "n", "\"odd name\"", "st.d", "NULL"])
            .prop_map(String::from),
        (-20i32..20).prop_map(|value| value.to_string()),
        (0u32..300).prop_map(|value| format!("{}.{:02}", value / 100, value % 100)),
        prop::sample::select(vec!["1e2", "2.5e-1", "9223372036854775807", "18446744073709551615"])
            .prop_map(String::from),
    ];
    leaf.prop_recursive(3, 12, 2, |inner| {
        prop_oneof![
            (inner.clone(), prop::sample::select(vec!["+", "-", "*", "/", "%", " // "]), inner.clone())
                .prop_map(|(l, op, r)| format!("{l}{op} {r}")),
            inner.clone().prop_map(|value| format!("({value})")),
            inner.clone().prop_map(|value| format!("- {value}")),
            inner.clone().prop_map(|value| format!("ABS({value})")),
            (inner.clone(), inner).prop_map(|(l, r)| format!("coalesce({l},{r})")),
            text().prop_map(|value| format!("length({value})")),
        ]
    })
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        prop::sample::select(vec!["s", "dict", "lower(s)", "upper(dict)", "NULL"]).prop_map(String::from),
        "[abc%_\\\\Ä']{0,4}".prop_map(|value| format!("'{}'", value.replace('\'', "''"))),
    ]
}

fn condition() -> impl Strategy<Value = String> {
    let compare = prop::sample::select(vec!["=", "==", "<>", "!=", "<", "<=", ">", ">="]);
    let leaf = prop_oneof![
        (number(), compare.clone(), number()).prop_map(|(l, op, r)| format!("{l}{op} {r}")),
        (text(), compare, text()).prop_map(|(l, op, r)| format!("{l}{op}{r}")),
        (number(), prop::collection::vec(number(), 1..7))
            .prop_map(|(v, list)| format!("{v} not in ({})", list.join(","))),
        (text(), prop::collection::vec(text(), 1..7))
            .prop_map(|(v, list)| format!("{v} IN ({})", list.join(","))),
        (number(), number(), number()).prop_map(|(v, a, b)| format!("{v} BETWEEN {a} AND {b}")),
        (text(), "[abc%_!]{0,4}").prop_map(|(v, p)| format!("{v} ilike '{p}'")),
        (text(), "[abc%_]{0,4}").prop_map(|(v, p)| format!("{v} NOT LIKE '{p}' ESCAPE '!'")),
        (text(), text()).prop_map(|(l, r)| format!("starts_with({l},{r}) = contains({l},{r})")),
        prop::sample::select(vec![
            "flag",
            "TRUE",
            "null",
            "day > '2024-01-01'",
            "time = day",
            "list is null",
            "(bin IS NOT NULL)"
        ])
        .prop_map(String::from),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            (inner.clone(), inner.clone()).prop_map(|(l, r)| format!("{l} AND {r}")),
            (inner.clone(), inner.clone()).prop_map(|(l, r)| format!("({l}) or ({r})")),
            (inner.clone(), inner.clone()).prop_map(|(l, r)| format!("({l}) = ({r})")),
            inner.clone().prop_map(|value| format!("NOT({value})")),
            inner.prop_map(|value| format!("({value}) IS NULL")),
        ]
    })
}

/// The table twice, rotated, so that record batches can be cut in many places.
fn rows() -> RecordBatch {
    let table = table();
    arrow::compute::concat_batches(&table.schema(), [&table, &table.slice(1, 3), &table.slice(0, 2)]).unwrap()
}

fn outcome(text: &str, batch: &RecordBatch) -> Option<Result<BooleanArray, usize>> {
    let predicate = Predicate::parse(text, &batch.schema()).ok()?;
    Some(match predicate.evaluate(batch) {
        Ok(values) => Ok(values),
        Err(EvaluateError::Overflow { row, .. }) => Err(row),
        Err(error) => panic!("{text}: {error:?}"),
    })
}

/// The same values in other Arrow types.
fn stored_otherwise(batch: &RecordBatch) -> RecordBatch {
    let dictionary = |values| DataType::Dictionary(Box::new(DataType::Int16), Box::new(values));
    let schema = batch.schema();
    let columns = schema.fields().iter().zip(batch.columns()).map(|(field, array)| {
        let to = match field.name().as_str() {
            "i" => dictionary(DataType::Int64),
            "s" => DataType::Utf8View,
            "dict" => DataType::LargeUtf8,
            "n" => DataType::Decimal64(7, 2),
            "bin" => DataType::LargeBinary,
            _ => field.data_type().clone(),
        };
        (field.name().clone(), cast(array, &to).unwrap(), true)
    });
    RecordBatch::try_from_iter_with_nullable(columns.collect::<Vec<_>>()).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn the_canonical_text_parses_to_an_equal_tree(text in condition()) {
        let expr = Expr::parse(&text).unwrap();
        let canonical = expr.to_string();
        let again = Expr::parse(&canonical).unwrap();
        prop_assert_eq!(&again, &expr);
        prop_assert_eq!(again.to_string(), canonical.clone());
        // And to the same meaning.
        let meaning = |text: &str| outcome(text, &table()).map(|result| result.map(|values| answers(&values)));
        prop_assert_eq!(meaning(&text), meaning(&canonical));
    }

    #[test]
    fn the_canonical_text_of_a_deep_expression_parses(signs in "([-+] ){0,110}", parentheses in 0usize..90) {
        let text = format!("{signs}{}i{}", "(".repeat(parentheses), ")".repeat(parentheses));
        if let Ok(expr) = Expr::parse(&text) {
            prop_assert_eq!(Expr::parse(&expr.to_string()).unwrap(), expr);
        }
    }

    #[test]
    fn record_batches_of_any_size_give_the_same_rows(text in condition(), cut in 0usize..9) {
        let rows = rows();
        let Some(whole) = outcome(&text, &rows) else { return Ok(()) };
        let (head, tail) = (rows.slice(0, cut), rows.slice(cut, rows.num_rows() - cut));
        match (outcome(&text, &head).unwrap(), outcome(&text, &tail).unwrap()) {
            (Ok(head), Ok(tail)) => {
                let joined = concat(&[&head, &tail]).unwrap();
                prop_assert_eq!(whole.as_ref().map(answers), Ok(answers(joined.as_boolean())));
            }
            _ => prop_assert!(whole.is_err()),
        }
    }

    #[test]
    fn the_way_that_arrow_stores_values_does_not_count(text in condition()) {
        let rows = rows();
        let other = stored_otherwise(&rows);
        let answer = |batch| outcome(&text, batch).map(|result| result.map(|values| answers(&values)));
        prop_assert_eq!(answer(&rows), answer(&other));
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in "\\PC{0,60}") {
        let _ = Predicate::parse(&text, &table().schema());
    }

    #[test]
    fn no_tokens_make_the_checker_panic(tokens in prop::collection::vec(prop::sample::select(vec![
        "i", "s", "f", "n", "u", "day", "flag", "list", "st", "st.d", "bin", "1", "2.5", "1e400", "'a'", "'2024-01-01'", "NULL", "TRUE",
        "(", ")", ",", "+", "-", "*", "/", "//", "%", "=", "<", "AND", "OR", "NOT", "IN", "BETWEEN", "LIKE", "ESCAPE", "IS", ".",
        "abs(", "length(", "coalesce(", "lower(", "contains(",
    ]), 0..12)) {
        let text = tokens.join(" ");
        if let Ok(predicate) = Predicate::parse(&text, &table().schema()) {
            let _ = predicate.evaluate(&table());
        }
    }
}

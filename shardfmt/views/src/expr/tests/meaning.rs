//! Stories: what expressions mean, and what their errors say.

use super::*;

#[test]
fn predicates_mean_what_sql_says() {
    let batch = table();
    for (text, expected) in [
        ("i > 0", "tfnt"),
        ("i IS NULL OR i > 0", "tftt"),
        ("NOT i > 0", "ftnf"),
        ("i > 2.5", "ffnt"),
        ("i >= -7.5", "ttnt"),
        ("small < 1000", "ttnt"),
        ("small = 1000", "ffnf"),
        ("u > -1", "ttnt"),
        ("u = 18446744073709551615", "ffnt"),
        ("u - 6 < 0", "ttnf"),
        ("f = 0", "tfnf"),
        ("f > 1e300", "ffnt"),
        ("f = f", "ttnt"),
        ("g = 0.1", "tfnf"),
        ("n = 1.5", "tfnf"),
        ("n > 1.499", "tfnt"),
        ("n + 0.5 = 2", "tfnf"),
        ("n * 2 = 3.00", "tfnf"),
        ("n % 0.4 = 0.3", "tfnf"),
        ("i / 2 = 0.5", "tfnf"),
        ("i // 2 = -3", "ftnf"),
        ("i % 2 = -1", "ftnf"),
        ("i / 0 IS NULL AND i % 0 IS NULL AND i // 0 IS NULL AND f / 0 IS NULL", "tttt"),
        ("s = 'abc'", "tfnf"),
        ("s LIKE '%a%'", "tfnt"),
        ("s LIKE '_rger'", "ftnf"),
        ("s ILIKE 'äRG%'", "ftnf"),
        ("s LIKE '50!%!_%' ESCAPE '!'", "ffnt"),
        ("s LIKE '%a\\b'", "ffnt"),
        ("s NOT LIKE 'a%'", "ftnt"),
        ("length(s) = 5", "ftnf"),
        ("upper(s) = 'ÄRGER' OR lower(s) = 'abc'", "ttnf"),
        ("starts_with(s, 'a') OR ends_with(s, 'er') OR contains(s, '%')", "ttnt"),
        ("contains(s, s)", "ttnt"),
        ("dict = s AND dict LIKE '%' AND length(dict) > 0", "ttnt"),
        ("dict IN ('abc', 'x', 'y', 'z', 'w')", "tfnf"),
        ("i IN (1, -7, NULL)", "ttnn"),
        ("i NOT IN (1, NULL)", "fnnn"),
        ("i IN (1, 2.5, 3, 4, 5, 1e0)", "tfnf"),
        ("5 IN (i, u)", "ftnf"),
        ("i BETWEEN -7 AND 1", "ttnf"),
        ("i NOT BETWEEN NULL AND 0", "tnnt"),
        ("'2024-01-01' BETWEEN day AND time", "tfnf"),
        ("flag", "tfnt"),
        ("flag = FALSE OR NULL", "ntnn"),
        ("flag AND NULL", "nfnn"),
        ("NULL", "nnnn"),
        ("TRUE", "tttt"),
        ("1 + 1 = 2 AND 'a' < 'b'", "tttt"),
        ("day = '2024-01-01'", "tfnf"),
        ("day < '2024-01-01 12:00'", "ttnf"),
        ("day = '2024-01-01 12:00'", "ffnf"),
        ("day = time AND time = zone", "ttnt"),
        ("time >= '2024-01-01T00:00:00'", "tfnt"),
        ("zone = '2024-01-01 01:30:00+01:30'", "tfnf"),
        ("day < '9999-12-31'", "ttnt"),
        ("length(list) = 0 OR length(list) = 2", "ttnf"),
        ("length(bin) = 3", "ffnt"),
        ("bin = bin AND list IS NOT NULL AND st IS NOT NULL", "ttft"),
        ("st.\"b c\" = 5", "tnnf"),
        ("st.d IS NULL", "fttf"),
        ("\"odd name\" + \"a.b\" + \"in\" = 6", "ftff"),
        ("abs(i) = 7 OR abs(n) = 0.25 OR abs(small) = 128", "ftnf"),
        ("coalesce(i, 0) = 0", "fftf"),
        ("coalesce(NULL, i, small, 2.5) = 2.5", "fftf"),
        ("coalesce(day, '2024-01-01') = '2024-01-01'", "tftf"),
        ("coalesce(dict, 'none') = 'none'", "fftf"),
        ("-i = 7", "ftnf"),
        ("- -i = 1 AND +i = 1", "tfnf"),
        ("empty IS NULL AND i == 1", "tfnf"),
        (
            "empty = 'a' OR length(empty) = 1 OR lower(empty) = s OR empty LIKE 'a' OR empty IN ('a','b','c','d')",
            "nnnn",
        ),
    ] {
        assert_eq!(evaluate(text, &batch).unwrap(), expected, "{text}");
    }
}

#[test]
fn overflow_names_the_row_and_settled_rows_do_not_count() {
    let batch = table();
    let error = evaluate("i + 1 > 0", &batch).unwrap_err();
    assert_eq!(
        error.to_string(),
        "row 3 of the record batch: i + 1 leaves the range of 64-bit integers; test the range first, as in \
         x < 1000 AND x * x < y"
    );
    assert_eq!(evaluate("i < 1000 AND i + 1 > 0", &batch).unwrap(), "tfnf");
    assert_eq!(evaluate("i >= 1000 OR i + 1 > 0", &batch).unwrap(), "tfnt");
    assert_eq!(evaluate("coalesce(\"in\", i + 1) > 0", &batch).unwrap(), "tttt");
    // The same row fails in any order of record batches.
    let tail = batch.slice(3, 1);
    assert!(matches!(evaluate("i + 1 > 0", &tail), Err(EvaluateError::Overflow { row: 0, .. })));
    assert!(matches!(
        evaluate("abs(i - 9223372036854775807 - 9) > 0", &batch),
        Err(EvaluateError::Overflow { row: 1, .. })
    ));
    assert_eq!(evaluate("small * small > 16000 AND u * 5 > 0 AND small - 1 < 0", &batch).unwrap(), "ftnf");
}

#[test]
fn an_error_shows_the_place_and_the_way_out() {
    let schema = table().schema();
    for (text, message) in [
        ("smal > 3", "there is no column smal: did you mean small?\n  smal > 3\n  ^^^^"),
        (
            "a.b = 1",
            "there is no column a.b: write \"a.b\" in double quotes, since the dot is part of the name\n  a.b = 1\n  ^^^",
        ),
        ("st.e = 1", "there is no column st.e: did you mean d?\n  st.e = 1\n  ^^^^"),
        (
            "i.x = 1",
            "i is Int64 and has no fields: write i alone, or quote a name that contains a dot\n  i.x = 1\n  ^^^",
        ),
        (
            "i = '5'",
            "an integer (Int64) cannot be compared with a string (Utf8): leave the quotes out\n  i = '5'\n  ^^^^^^^",
        ),
        (
            "s = 5",
            "a string (Utf8) cannot be compared with an integer (Int64): put the number in 'single quotes', or take length(…)\n  s = 5\n  ^^^^^",
        ),
        (
            "day > 20240101",
            "a date or timestamp (Date32) cannot be compared with an integer (Int64): write the date in quotes, as in '2024-01-31'\n  day > 20240101\n  ^^^^^^^^^^^^^^",
        ),
        (
            "day > '2024-02-30'",
            "'2024-02-30' is no date and no timestamp: write '2024-01-31', '2024-01-31 12:00:00' or '2024-01-31T12:00:00.5Z', with days that exist\n  day > '2024-02-30'\n        ^^^^^^^^^^^^",
        ),
        (
            "time > '2024-01-01 00:00Z'",
            "'2024-01-01 00:00Z' has an offset from UTC and the column has no time zone: leave the offset out, and write the time as the column has it\n  time > '2024-01-01 00:00Z'\n         ^^^^^^^^^^^^^^^^^^^",
        ),
        (
            "i + 1",
            "the expression is an integer and a predicate is true or false: compare it, as in x > 0 or x IS NOT NULL\n  i + 1\n  ^^^^^",
        ),
        (
            "i AND flag",
            "AND joins conditions and this is an integer: compare it, as in x <> 0 or x IS NOT NULL\n  i AND flag\n  ^",
        ),
        ("1 < i < 5", "comparisons do not form chains: write 1 < x AND x < 5\n  1 < i < 5\n        ^"),
        ("lenght(s) > 1", "there is no function lenght: did you mean length?\n  lenght(s) > 1\n  ^^^^^^"),
        ("lower(s, s) = 'a'", "lower got 2 arguments: give it one\n  lower(s, s) = 'a'\n  ^^^^^^^^^^^"),
        (
            "s = \"abc",
            "a column name has no closing quote: end it with \"; inside, write \"\" for \"\n  s = \"abc\n      ^^^^",
        ),
        (
            "s = 'abc",
            "a string has no closing quote: end it with '; inside, write '' for '\n  s = 'abc\n      ^^^^",
        ),
        ("i IN ()", "the list of IN is empty: write at least one value\n  i IN ()\n        ^"),
        ("(i > 1", "a parenthesis is not closed: write ) after the expression\n  (i > 1\n        ^"),
        ("i > 1)", "a parenthesis closes that was never opened: remove it\n  i > 1)\n       ^"),
        ("i > ", "the expression ends too early: write a column or a value here\n  i > \n      ^"),
        (
            "i = 1 s = 2",
            "s follows a complete expression: join conditions with AND or OR, and write strings in 'single quotes'\n  i = 1 s = 2\n        ^",
        ),
        (
            "i && 1",
            "the character '&' has no meaning here: write strings in 'single quotes' and unusual column names in \"double quotes\"\n  i && 1\n    ^",
        ),
        (
            "i > 1 -- why",
            "an expression has no comments: leave the comment out, or write a space between two minus signs\n  i > 1 -- why\n        ^^",
        ),
        (
            "in = 1",
            "the keyword IN stands where a value is expected: write a column or a value; a column of this name is \"in\"\n  in = 1\n  ^^",
        ),
        (
            "s LIKE s",
            "the pattern of LIKE is no constant string: write it in 'single quotes'; for columns there is contains(a, b)\n  s LIKE s\n         ^",
        ),
        (
            "f // 2 = 1",
            "// divides integers and this is a float: write / for other numbers\n  f // 2 = 1\n  ^^^^^^",
        ),
        (
            "9223372036854775807 + 1 > i",
            "9223372036854775807 + 1 leaves the range of 64-bit integers: write a smaller number, or one with an exponent (1e20)\n  9223372036854775807 + 1 > i\n  ^^^^^^^^^^^^^^^^^^^^^^^",
        ),
        (
            "i = 12abc",
            "this is no number: write 12, 1.25 or 1e-3; put column names that begin with a digit in \"double quotes\"\n  i = 12abc\n      ^^^^^",
        ),
        (
            "i IS TRUE",
            "IS tests for NULL only: write IS NULL or IS NOT NULL; else compare with =\n  i IS TRUE\n       ^^^^",
        ),
        (
            "coalesce(i, s) = 1",
            "coalesce got a string after another type: give it values of one kind\n  coalesce(i, s) = 1\n              ^",
        ),
    ] {
        let error = Predicate::parse(text, &schema).map(|_| ()).unwrap_err();
        assert_eq!(error.to_string(), message, "{text}");
    }
}

fn one_column(name: &str, values: ArrayRef) -> RecordBatch {
    RecordBatch::try_from_iter([(name, values)]).unwrap()
}

#[test]
fn columns_of_one_name_are_refused_and_wrong_batches_too() {
    let field = arrow::datatypes::Field::new("x", DataType::Int32, true);
    let twice = Schema::new(vec![field.clone(), field]);
    let error = Predicate::parse("x = 1", &twice).map(|_| ()).unwrap_err();
    assert!(error.to_string().starts_with("two columns are named x: rename one"), "{error}");
    let predicate = Predicate::parse("i > 0", &table().schema()).unwrap();
    assert_eq!(predicate.columns(), ["i"]);
    let narrow = one_column("i", Arc::new(Int32Array::from(vec![1])));
    assert_eq!(
        predicate.evaluate(&narrow).unwrap_err().to_string(),
        "column i is Int32 and the predicate was parsed for Int64: parse it for this schema"
    );
    assert!(matches!(
        predicate.evaluate(&one_column("j", Arc::new(Int64Array::from(vec![1])))),
        Err(EvaluateError::Schema { .. })
    ));
}

#[test]
fn the_text_has_one_canonical_form() {
    for (text, canonical) in [
        ("((a))=1 and(b OR c)and d", "a = 1 AND (b OR c) AND d"),
        ("(a AND b) AND (c AND d)", "a AND b AND c AND d"),
        ("a or (b or c) or d and e", "a OR b OR c OR d AND e"),
        ("not(a and b) or not not c", "NOT (a AND b) OR NOT NOT c"),
        ("a-(b-c)-d*-(2)", "a - (b - c) - d * -2"),
        ("(a-b)-c", "a - b - c"),
        ("-(-a)", "-(-a)"),
        ("- - 5 = +5", "5 = 5"),
        ("\"a\".\"b c\" <> \"IN\"", "a.\"b c\" <> \"IN\""),
        ("x!=.50", "x <> 0.50"),
        ("x = 1E3 OR x = 1.5e-7", "x = 1e3 OR x = 1.5e-7"),
        ("x is not null is null", "x IS NOT NULL IS NULL"),
        ("(x = 1) is null", "x = 1 IS NULL"),
        ("(x is null) = y", "(x IS NULL) = y"),
        ("x not between 1+1 and (2)", "x NOT BETWEEN 1 + 1 AND 2"),
        ("x like 'it''s' escape '''' ", "x LIKE 'it''s' ESCAPE ''''"),
        ("COALESCE(A,b) in(1,2)", "coalesce(A, b) IN (1, 2)"),
        ("größe > 3 AND \"1a\" = 2", "größe > 3 AND \"1a\" = 2"),
    ] {
        let expr: Expr = text.parse().unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(expr.to_string(), canonical, "{text}");
        assert_eq!(canonical.parse::<Expr>().unwrap(), expr, "{text}");
    }
}

#[test]
fn depth_and_length_are_limited() {
    for text in
        ["(".repeat(MAX_TEXT_BYTES), "NOT ".repeat(200_000), "- ".repeat(400_000), "abs(".repeat(200_000)]
    {
        assert!(matches!(Expr::parse(&text), Err(ExprError::TooDeep { .. })));
    }
    assert!(matches!(
        Expr::parse(&"1+".repeat(200_000)),
        Err(ExprError::Syntax { .. } | ExprError::TooDeep { .. })
    ));
    assert!(matches!(Expr::parse(&format!("1{}", "+1".repeat(5_000))), Err(ExprError::TooDeep { .. })));
    assert!(matches!(Expr::parse(&format!("a{}", ".a".repeat(5_000))), Err(ExprError::TooDeep { .. })));
    assert!(matches!(Expr::parse(&"x".repeat(MAX_TEXT_BYTES + 1)), Err(ExprError::TooLong { .. })));
    // Long conditions and lists are no deep ones.
    let long = vec!["i = 1"; 20_000].join(" OR ");
    assert_eq!(evaluate(&long, &table()).unwrap(), "tfnf");
    let list: Vec<_> = (0..100_000).map(|number| number.to_string()).collect();
    assert_eq!(evaluate(&format!("i IN ({})", list.join(",")), &table()).unwrap(), "tfnf");
    let deep = format!("{}i > 0{}", "(".repeat(MAX_DEPTH - 1), ")".repeat(MAX_DEPTH - 1));
    assert_eq!(evaluate(&deep, &table()).unwrap(), "tfnt");
    let shown = Expr::parse(&format!("{} ? 1", "x = 1 AND ".repeat(1000))).unwrap_err().to_string();
    assert!(shown.len() < 600, "{shown}");
}

#[test]
fn a_predicate_may_cross_threads() {
    fn check<T: Send + Sync + 'static>() {}
    check::<Predicate>();
    check::<Expr>();
    check::<ExprError>();
    check::<crate::projection::Projection>();
    check::<crate::dedup::MinHasher>();
    check::<crate::split::Split>();
    check::<crate::rule::Derivation>();
}

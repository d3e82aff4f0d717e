//! Laws and stories of documents.

use std::sync::Arc;

use arrow::datatypes::Field;

use super::*;

fn rules() -> Vec<Rule> {
    vec![
        Rule::Filter { expression: "lang='en' and length( text )>10".parse().unwrap() },
        Rule::Dedup { method: Dedup::Exact { by: Key::Row } },
        Rule::Dedup { method: Dedup::Minhash { column: "text".into(), parameters: MinHash::default() } },
        Rule::SplitPart {
            parts: Parts::parse("train=0.9,test=0.1").unwrap(),
            part: "train".into(),
            by: Key::Columns(vec!["user id".into()]),
            stratify: None,
            seed: 7,
        },
        Rule::Sample { sample: Sample::Balanced { by: "lang".into(), total: 100 }, seed: 3 },
        Rule::Select { columns: vec!["text".into()] },
    ]
}

fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("text", DataType::Utf8, true),
        Field::new("lang", DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::Utf8)), true),
        Field::new("user id", DataType::Int64, true),
    ]))
}

#[test]
fn the_canonical_json_of_a_release_stays() {
    let derivation = Derivation::new("3fa9c2", rules());
    let json = r#"{"version":1,"parent":"3fa9c2","rules":[{"filter":{"expression":"lang = 'en' AND length(text) > 10"}},{"dedup":{"method":{"exact":{"by":"row"}}}},{"dedup":{"method":{"minhash":{"column":"text","parameters":{"num_perm":256,"threshold":"0.7","ngram":5,"unit":"word","seed":1}}}}},{"split_part":{"parts":"train=0.9,test=0.1","part":"train","by":{"columns":["user id"]},"seed":7}},{"sample":{"sample":{"balanced":{"by":"lang","total":100}},"seed":3}},{"select":{"columns":["text"]}}]}"#;
    assert_eq!(derivation.to_json(), json);
    assert_eq!(Derivation::from_json(json).unwrap(), derivation);
    assert_eq!(blake3::Hash::from(derivation.digest()).to_hex()[..16], *GOLDEN);
}

const GOLDEN: &str = "70bb983240b0469a";

#[test]
fn a_rule_reads_back_and_its_spelling_does_not_count() {
    for rule in rules() {
        assert_eq!(Rule::from_json(&rule.to_json()).unwrap(), rule);
    }
    let spelled = r#"{ "rule": {"filter": {"expression": "LANG_ = 'en'   and x == 1.50"}}, "version": 1 }"#;
    let rule = Rule::from_json(spelled).unwrap();
    assert_eq!(
        rule.to_json(),
        r#"{"version":1,"rule":{"filter":{"expression":"LANG_ = 'en' AND x = 1.50"}}}"#
    );
    assert_eq!(rule.digest(), Rule::from_json(&rule.to_json()).unwrap().digest());
}

#[test]
fn unknown_fields_and_newer_versions_are_refused() {
    let refused = |text: &str| match Rule::from_json(text) {
        Err(RuleError::Document(source)) => source.to_string(),
        other => panic!("{other:?}"),
    };
    assert!(
        refused(r#"{"version":2,"rule":{"select":{"columns":["a"]}}}"#).contains("version 2 is newer than 1")
    );
    assert!(
        refused(r#"{"version":1,"rule":{"select":{"columns":["a"],"x":1}}}"#).contains("unknown field `x`")
    );
    assert!(refused(r#"{"version":1,"rule":{"shuffle":{}}}"#).contains("unknown variant `shuffle`"));
    assert!(refused(r#"{"rule":{"select":{"columns":["a"]}}}"#).contains("missing field `version`"));
    assert!(refused(r#"{"version":1,"rule":{"filter":{"expression":"x >"}}}"#).contains("ends too early"));
}

#[test]
fn a_derivation_is_checked_rule_by_rule() {
    let left = Derivation::new("3fa9c2", rules()).check(&schema()).unwrap();
    assert_eq!(left.fields().len(), 1);
    let mut wrong = rules();
    wrong.swap(0, 5);
    let (index, error) = Derivation::new("3fa9c2", wrong).check(&schema()).unwrap_err();
    assert_eq!((index, error.to_string().as_str()), (3, "there is no column user id: the columns are text"));
    let method = Dedup::Minhash { column: "user id".into(), parameters: MinHash::default() };
    let error = Rule::Dedup { method }.check(&schema()).unwrap_err();
    assert!(error.to_string().starts_with("column user id is Int64: near-duplicates"), "{error}");
    let sample = Sample::Fraction { fraction: "1.5".parse().unwrap() };
    assert!(Rule::Sample { sample, seed: 1 }.check(&schema()).is_err());
}

#[test]
fn a_derivation_is_one_line() {
    let mut rules = rules();
    rules.push(Rule::Filter { expression: "text <> 'a\nb'".parse().unwrap() });
    let line = Derivation::new("3fa9c2", rules).to_string();
    assert_eq!(
        line,
        "3fa9c2 | filter lang = 'en' AND length(text) > 10 | dedup exact by row \
         | dedup minhash of text from 0.7 over 5 words, 256 values, seed 1 \
         | split train=0.9,test=0.1 by \"user id\" seed 7, part train \
         | sample 100 balanced by lang seed 3 | select text | filter text <> 'a b'"
    );
}

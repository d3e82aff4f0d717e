//! Checks an expression against a schema, once, and plans its evaluation.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{RecordBatch, RecordBatchOptions};
use arrow::datatypes::{DataType, Field, Fields, Schema};

use super::arith::Domain;
use super::compare::Set;
use super::error::{EvaluateError, ExprError, Place};
use super::fold::{self, Folded};
use super::nearest;
use super::plan::{Plan, Test};
use super::tree::{Comparison, Expr, Identifier, Kind, Literal};
use super::types::{Class, Conversion, comparable, plain};

/// IN lists with fewer constants are compared one by one.
const SET_FROM: usize = 4;

/// Characters of an operation that an error shows.
const SHOWN: usize = 60;

/// A checked expression.
#[derive(Debug, Clone)]
pub(super) struct Typed {
    pub(super) plan: Plan,
    /// Without a dictionary.
    pub(super) data_type: DataType,
    /// The value, if it is a constant.
    pub(super) literal: Option<Literal>,
    pub(super) span: Range<usize>,
}

impl Typed {
    pub(super) fn class(&self) -> Class {
        Class::of(&self.data_type)
    }

    pub(super) fn is_null(&self) -> bool {
        self.class() == Class::Null
    }

    fn constant(literal: Literal, span: Range<usize>) -> Self {
        let value = fold::natural(&literal);
        Self {
            data_type: value.array.data_type().clone(),
            plan: Plan::Constant(value),
            literal: Some(literal),
            span,
        }
    }

    /// The plan with its values converted.
    pub(super) fn converted(self, conversion: Conversion) -> Plan {
        Plan::Convert { input: self.plan.into(), conversion }
    }
}

/// The plan of a predicate: its values are booleans or NULL.
pub(super) fn predicate(text: &str, schema: &Schema, expr: &Expr) -> Result<Plan, ExprError> {
    let checker = Checker { text, schema };
    let typed = checker.check(expr)?;
    if !matches!(typed.class(), Class::Bool | Class::Null) {
        let problem = format!("the expression is {} and a predicate is true or false", typed.class().noun());
        return Err(checker.wrong(&typed.span, &problem, "compare it, as in x > 0 or x IS NOT NULL"));
    }
    Ok(typed.plan)
}

pub(super) struct Checker<'a> {
    pub(super) text: &'a str,
    schema: &'a Schema,
}

pub(super) type Checked = Result<Typed, ExprError>;

impl Checker<'_> {
    pub(super) fn check(&self, expr: &Expr) -> Checked {
        let span = &expr.span;
        match &expr.kind {
            Kind::Column(path) => self.column(path, span),
            Kind::Literal(literal) => Ok(Typed::constant(literal.clone(), span.clone())),
            Kind::Not(value) => {
                let value = self.boolean(value, "NOT")?;
                let constant = value.literal.is_some();
                self.finish(Plan::Not(value.plan.into()), DataType::Boolean, constant, span)
            }
            Kind::And(terms) => self.junction(true, terms, span),
            Kind::Or(terms) => self.junction(false, terms, span),
            Kind::Compare(op, left, right) => self.compare(*op, self.check(left)?, self.check(right)?, span),
            Kind::IsNull { value, negated } => {
                let value = self.check(value)?;
                let constant = value.literal.is_some();
                let plan = Plan::IsNull { input: value.plan.into(), negated: *negated };
                self.finish(plan, DataType::Boolean, constant, span)
            }
            Kind::In { value, list, negated } => {
                let list: Result<Vec<_>, _> = list.iter().map(|item| self.check(item)).collect();
                let tests = list?.into_iter().map(|item| (Comparison::Equal, item)).collect();
                let found = self.tests(self.check(value)?, tests, false, span)?;
                self.negate_if(*negated, found, span)
            }
            Kind::Between { value, low, high, negated } => {
                let low = (Comparison::GreaterEqual, self.check(low)?);
                let high = (Comparison::LessEqual, self.check(high)?);
                let found = self.tests(self.check(value)?, vec![low, high], true, span)?;
                self.negate_if(*negated, found, span)
            }
            Kind::Like { value, pattern, escape, ignore_case, negated } => {
                let found =
                    self.like(self.check(value)?, self.check(pattern)?, *escape, *ignore_case, span)?;
                self.negate_if(*negated, found, span)
            }
            Kind::Negate(value) => self.negate(self.check(value)?, expr),
            Kind::Arithmetic(operator, left, right) => {
                self.arithmetic(*operator, self.check(left)?, self.check(right)?, expr)
            }
            Kind::Call(function, arguments) => {
                let arguments: Result<Vec<_>, _> =
                    arguments.iter().map(|argument| self.check(argument)).collect();
                self.call(*function, arguments?, expr)
            }
        }
    }

    fn column(&self, path: &[String], span: &Range<usize>) -> Checked {
        let Some((first, fields)) = path.split_first() else {
            return Err(self.wrong(span, "the column has no name", "name one"));
        };
        let mut found = self.field(self.schema.fields(), first, path, span)?;
        for (depth, name) in fields.iter().enumerate() {
            let DataType::Struct(children) = found.data_type() else {
                let parent = shown_path(&path[..=depth]);
                let problem = format!("{parent} is {} and has no fields", found.data_type());
                let way_out = format!("write {parent} alone, or quote a name that contains a dot");
                return Err(self.wrong(span, &problem, &way_out));
            };
            found = self.field(children, name, path, span)?;
        }
        let native = found.data_type();
        let data_type = plain(native);
        let column = Plan::Column { path: path.to_vec(), data_type: native.clone() };
        let is_plain =
            *native == data_type || matches!(native, DataType::Dictionary(_, v) if **v == data_type);
        let plan = match is_plain {
            true => column,
            false => Plan::Convert { input: column.into(), conversion: Conversion::Cast(data_type.clone()) },
        };
        Ok(Typed { plan, data_type, literal: None, span: span.clone() })
    }

    fn field<'f>(
        &self,
        fields: &'f Fields,
        name: &str,
        path: &[String],
        span: &Range<usize>,
    ) -> Result<&'f Field, ExprError> {
        let mut named = fields.iter().filter(|field| field.name() == name);
        let place = Place::new(self.text, span.clone());
        match (named.next(), named.next()) {
            (Some(field), None) => Ok(field),
            (Some(_), Some(_)) => Err(ExprError::Column {
                problem: format!("two columns are named {name}"),
                way_out: "rename one of them, since a predicate cannot tell them apart".into(),
                place,
            }),
            (None, _) => Err(ExprError::Column {
                problem: format!("there is no column {}", shown_path(path)),
                way_out: self.way_out(fields, name, path),
                place,
            }),
        }
    }

    fn way_out(&self, fields: &Fields, name: &str, path: &[String]) -> String {
        let joined = path.join(".");
        if path.len() > 1 && self.schema.fields().iter().any(|field| *field.name() == joined) {
            return format!("write \"{joined}\" in double quotes, since the dot is part of the name");
        }
        let names: Vec<String> = fields.iter().map(|field| Identifier(field.name()).to_string()).collect();
        nearest::way_out(name, &names, "columns")
    }

    fn boolean(&self, expr: &Expr, operator: &str) -> Checked {
        let typed = self.check(expr)?;
        if matches!(typed.class(), Class::Bool | Class::Null) {
            return Ok(typed);
        }
        let problem = format!("{operator} joins conditions and this is {}", typed.class().noun());
        Err(self.wrong(&typed.span, &problem, "compare it, as in x <> 0 or x IS NOT NULL"))
    }

    fn junction(&self, all: bool, terms: &[Expr], span: &Range<usize>) -> Checked {
        let operator = if all { "AND" } else { "OR" };
        let terms: Result<Vec<_>, _> = terms.iter().map(|term| self.boolean(term, operator)).collect();
        let terms = terms?;
        let constant = terms.iter().all(|term| term.literal.is_some());
        let terms: Vec<_> = terms.into_iter().map(|term| term.plan).collect();
        let masked = terms.iter().skip(1).any(Plan::can_fail);
        self.finish(Plan::Junction { all, terms, masked }, DataType::Boolean, constant, span)
    }

    fn compare(&self, op: Comparison, left: Typed, right: Typed, span: &Range<usize>) -> Checked {
        let swap = left.literal.is_some() && right.literal.is_none();
        let (op, left, right) = if swap { (op.flipped(), right, left) } else { (op, left, right) };
        self.tests(left, vec![(op, right)], true, span)
    }

    /// All or any of the comparisons with `value`.
    fn tests(
        &self,
        value: Typed,
        others: Vec<(Comparison, Typed)>,
        all: bool,
        span: &Range<usize>,
    ) -> Checked {
        let constant = value.literal.is_some() && others.iter().all(|(_, other)| other.literal.is_some());
        if value.literal.is_some() && !constant && others.len() > 1 {
            // The constant takes the type of each of the others.
            let compared: Result<Vec<_>, _> =
                others.into_iter().map(|(op, other)| self.compare(op, value.clone(), other, span)).collect();
            let terms: Vec<_> = compared?.into_iter().map(|typed| typed.plan).collect();
            let masked = terms.iter().skip(1).any(Plan::can_fail);
            return self.finish(Plan::Junction { all, terms, masked }, DataType::Boolean, false, span);
        }
        let tests: Result<Vec<_>, _> =
            others.into_iter().map(|(op, other)| self.test(op, &value, other)).collect();
        let tests = with_set(tests?, all);
        self.finish(Plan::Tests { value: value.plan.into(), tests, all }, DataType::Boolean, constant, span)
    }

    fn test(&self, op: Comparison, value: &Typed, other: Typed) -> Result<Test, ExprError> {
        if value.is_null() || other.is_null() {
            return Ok(Test::Unknown);
        }
        if let Some(literal) = &other.literal {
            match fold::constant(op, &value.data_type, literal) {
                Folded::Test(op, constant) => return Ok(Test::Constant(op, constant)),
                Folded::Always(answer) => return Ok(Test::Always(answer)),
                Folded::Wrong(problem, way_out) => return Err(self.wrong(&other.span, &problem, &way_out)),
                Folded::General => {}
            }
        }
        let Some((left, right)) = comparable(&value.data_type, &other.data_type) else {
            return Err(self.mismatch(value, &other));
        };
        Ok(Test::Against { op, conversion: left, other: other.converted(right) })
    }

    fn mismatch(&self, left: &Typed, right: &Typed) -> ExprError {
        let (l, r) = (left.class(), right.class());
        let problem = format!(
            "{} ({}) cannot be compared with {} ({})",
            l.noun(),
            left.data_type,
            r.noun(),
            right.data_type
        );
        let number_in_quotes = match (&left.literal, &right.literal) {
            (_, Some(Literal::Text(text))) if l.is_number() => text.trim().parse::<f64>().is_ok(),
            _ => false,
        };
        let way_out = match (l, r) {
            _ if number_in_quotes => "leave the quotes out",
            (Class::Text, r) if r.is_number() => "put the number in 'single quotes', or take length(…)",
            (Class::Instant, r) if r.is_number() => "write the date in quotes, as in '2024-01-31'",
            (Class::Bytes | Class::List | Class::Other, _) => "test it with IS NULL, or its length(…)",
            (Class::Bool, _) => "write the condition alone, or compare it with TRUE or FALSE",
            _ => "compare values of one kind; column names have no quotes or \"double quotes\"",
        };
        self.wrong(
            &(left.span.start.min(right.span.start)..left.span.end.max(right.span.end)),
            &problem,
            way_out,
        )
    }

    fn negate_if(&self, negated: bool, typed: Typed, span: &Range<usize>) -> Checked {
        if !negated {
            return Ok(typed);
        }
        let constant = typed.literal.is_some();
        self.finish(Plan::Not(typed.plan.into()), DataType::Boolean, constant, span)
    }

    /// A checked node; if all its operands are constants, its value.
    pub(super) fn finish(
        &self,
        plan: Plan,
        data_type: DataType,
        constant: bool,
        span: &Range<usize>,
    ) -> Checked {
        if constant {
            match plan.evaluate(&one_row(), None) {
                Ok(value) => {
                    if let Some(literal) = fold::literal(&value.array) {
                        return Ok(Typed::constant(literal, span.clone()));
                    }
                }
                Err(EvaluateError::Overflow { operation, range, .. }) => {
                    let problem = format!("{operation} leaves the range of {range}");
                    return Err(self.wrong(
                        span,
                        &problem,
                        "write a smaller number, or one with an exponent (1e20)",
                    ));
                }
                Err(error) => {
                    let problem = format!("the constant has no value ({error})");
                    return Err(self.wrong(span, &problem, "write its value instead"));
                }
            }
        }
        Ok(Typed { plan, data_type, literal: None, span: span.clone() })
    }

    pub(super) fn wrong(&self, span: &Range<usize>, problem: &str, way_out: &str) -> ExprError {
        let place = Place::new(self.text, span.clone());
        ExprError::Type { problem: problem.into(), way_out: way_out.into(), place }
    }
}

/// A record batch of one row and no columns.
fn one_row() -> RecordBatch {
    let options = RecordBatchOptions::new().with_row_count(Some(1));
    RecordBatch::try_new_with_options(Arc::new(Schema::empty()), Vec::new(), &options)
        .expect("no columns always fit a schema without fields")
}

/// The tests, of which many constants become a set. A set stands first.
fn with_set(tests: Vec<Test>, all: bool) -> Vec<Test> {
    let is_member = |test: &Test| matches!(test, Test::Constant(Comparison::Equal, _));
    if all || tests.iter().filter(|test| is_member(test)).count() < SET_FROM {
        return tests;
    }
    let (members, mut rest): (Vec<_>, Vec<_>) = tests.into_iter().partition(is_member);
    let values: Vec<_> = members
        .iter()
        .filter_map(|test| if let Test::Constant(_, value) = test { Some(value.clone()) } else { None })
        .collect();
    match Set::new(&values) {
        Some(set) => rest.insert(0, Test::OneOf(set)),
        None => rest.extend(members),
    }
    // One answer stands for all that are equal.
    rest.dedup_by(|a, b| matches!((a, b), (Test::Always(x), Test::Always(y)) if x == y));
    rest
}

fn shown_path(path: &[String]) -> String {
    path.iter().map(|name| Identifier(name).to_string()).collect::<Vec<_>>().join(".")
}

/// The text of an operation, cut for an error.
pub(super) fn shown(expr: &Expr) -> String {
    let text = expr.to_string();
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// The domain's conversion of one side.
pub(super) fn into_domain(domain: &Domain, from: &DataType) -> Conversion {
    match domain {
        Domain::Integer => Conversion::to(from, &DataType::Int64),
        Domain::Decimal { .. } => match from {
            DataType::Decimal128(..) => Conversion::None,
            _ => Conversion::Cast(super::types::WIDE),
        },
        Domain::Float32 => {
            if *from == DataType::Float32 {
                Conversion::None
            } else {
                Conversion::Float32
            }
        }
        Domain::Float64 => {
            if *from == DataType::Float64 {
                Conversion::None
            } else {
                Conversion::Float64
            }
        }
    }
}

//! Checks arithmetic, LIKE and functions.

use std::ops::Range;

use arrow::datatypes::DataType;

use super::arith::Domain;
use super::check::{Checked, Checker, Typed, into_domain, shown};
use super::error::ExprError;
use super::fold;
use super::plan::Plan;
use super::text::{self, Case, Search};
use super::tree::{Expr, Function, Literal, Operator};
use super::types::{Class, Conversion, WIDE, common_number};

/// Digits of the largest decimal.
const MAX_PRECISION: i32 = 38;

impl Checker<'_> {
    pub(super) fn arithmetic(&self, operator: Operator, left: Typed, right: Typed, expr: &Expr) -> Checked {
        for side in [&left, &right] {
            self.number(side, operator.symbol())?;
        }
        if left.is_null() || right.is_null() {
            return Ok(null(&expr.span));
        }
        let domain = self.domain(operator, &left, &right, expr)?;
        let constant = left.literal.is_some() && right.literal.is_some();
        let plan = Plan::Arithmetic {
            operator,
            left: operand(left, &domain).into(),
            right: operand(right, &domain).into(),
            text: shown(expr),
            domain: domain.clone(),
        };
        self.finish(plan, domain.result(), constant, &expr.span)
    }

    /// `-value`, which is `value * -1`.
    pub(super) fn negate(&self, value: Typed, expr: &Expr) -> Checked {
        self.number(&value, "-")?;
        if value.is_null() {
            return Ok(null(&expr.span));
        }
        let minus_one = fold::natural(&Literal::Integer(-1));
        let minus_one = Typed {
            data_type: DataType::Int64,
            plan: Plan::Constant(minus_one),
            literal: Some(Literal::Integer(-1)),
            span: expr.span.clone(),
        };
        self.arithmetic(Operator::Multiply, value, minus_one, expr)
    }

    fn number(&self, side: &Typed, operator: &str) -> Result<(), ExprError> {
        let class = side.class();
        if class.is_number() || class == Class::Null {
            return Ok(());
        }
        let problem = format!("{operator} computes with numbers and this is {}", class.noun());
        let way_out = match class {
            Class::Text => "leave the quotes out of a number; columns of strings have length(…) only",
            Class::Instant => "compare dates with other dates in quotes; there is no arithmetic of dates",
            _ => "use a column of numbers",
        };
        Err(self.wrong(&side.span, &problem, way_out))
    }

    fn domain(
        &self,
        operator: Operator,
        left: &Typed,
        right: &Typed,
        expr: &Expr,
    ) -> Result<Domain, ExprError> {
        let (l, r) = (left.class(), right.class());
        let is_float = |class| matches!(class, Class::Float32 | Class::Float64);
        let integers = l == Class::Integer && r == Class::Integer;
        if operator == Operator::DivideWhole && !integers && !is_wide(left, right) {
            let problem =
                format!("// divides integers and this is {}", if l == Class::Integer { r } else { l }.noun());
            return Err(self.wrong(&expr.span, &problem, "write / for other numbers"));
        }
        if l == Class::Float64 || r == Class::Float64 {
            return Ok(Domain::Float64);
        }
        if is_float(l) || is_float(r) {
            return Ok(Domain::Float32);
        }
        if operator == Operator::Divide {
            return Ok(Domain::Float64);
        }
        let unsigned = |side: &Typed| side.data_type == DataType::UInt64;
        if integers && !unsigned(left) && !unsigned(right) {
            return Ok(Domain::Integer);
        }
        self.decimal(operator, l, r, expr)
    }

    fn decimal(&self, operator: Operator, l: Class, r: Class, expr: &Expr) -> Result<Domain, ExprError> {
        let (left, right) = (shape(l), shape(r));
        let scale = left.scale.max(right.scale);
        let whole = left.whole.max(right.whole);
        let (precision, scale) = match operator {
            Operator::Multiply => {
                (left.whole + right.whole + left.scale + right.scale, left.scale + right.scale)
            }
            Operator::Add | Operator::Subtract => (whole + 1 + scale, scale),
            _ => (whole + scale, scale),
        };
        let factor = |side: Shape| match operator {
            Operator::Multiply => Some(1),
            _ => 10i128.checked_pow((scale - side.scale).unsigned_abs()),
        };
        let precision = precision.clamp(scale.max(1), MAX_PRECISION.max(scale));
        match (factor(left), factor(right), u8::try_from(precision), i8::try_from(scale)) {
            (Some(l), Some(r), Ok(precision), Ok(scale)) if i32::from(precision) <= MAX_PRECISION => {
                Ok(Domain::Decimal { factors: (l, r), result: DataType::Decimal128(precision, scale) })
            }
            _ => {
                let problem = format!("the result has {scale} digits after the point and the limit is 38");
                Err(self.wrong(&expr.span, &problem, "multiply by 1e0 first to compute with floats"))
            }
        }
    }

    pub(super) fn like(
        &self,
        value: Typed,
        pattern: Typed,
        escape: Option<char>,
        ignore_case: bool,
        span: &Range<usize>,
    ) -> Checked {
        self.string(&value, "LIKE")?;
        if value.is_null() || pattern.is_null() {
            return Ok(null(span));
        }
        let Some(Literal::Text(given)) = &pattern.literal else {
            let problem = "the pattern of LIKE is no constant string";
            return Err(self.wrong(
                &pattern.span,
                problem,
                "write it in 'single quotes'; for columns there is contains(a, b)",
            ));
        };
        let translated = text::arrow_pattern(given, escape, ignore_case);
        let translated =
            translated.map_err(|problem| self.wrong(&pattern.span, problem, "double that character"))?;
        // The kernel compiles the pattern: it must not be too large for that.
        let none = arrow::array::new_empty_array(&DataType::Utf8);
        if text::like(&none, &translated, ignore_case).is_err() {
            return Err(self.wrong(
                &pattern.span,
                "the pattern is too long",
                "use fewer wildcards, or contains(a, b)",
            ));
        }
        let constant = value.literal.is_some();
        let plan = Plan::Like { input: value.plan.into(), pattern: translated, ignore_case };
        self.finish(plan, DataType::Boolean, constant, span)
    }

    pub(super) fn call(&self, function: Function, arguments: Vec<Typed>, expr: &Expr) -> Checked {
        if function == Function::Coalesce {
            return self.coalesce(arguments, expr);
        }
        let constant = arguments.iter().all(|argument| argument.literal.is_some());
        let any_null = arguments.iter().any(Typed::is_null);
        for argument in &arguments {
            match function {
                Function::Abs => self.number(argument, "abs")?,
                Function::Length => self.has_length(argument)?,
                _ => self.string(argument, function.name())?,
            }
        }
        let mut arguments = arguments.into_iter();
        let Some(first) = arguments.next().filter(|_| !any_null) else { return Ok(null(&expr.span)) };
        let (plan, data_type) = match (function, arguments.next()) {
            (Function::Abs, _) => {
                let domain = self.domain(Operator::Add, &first, &first, expr)?;
                let domain = match domain {
                    Domain::Decimal { factors, .. } if first.class() != Class::Integer => {
                        Domain::Decimal { factors, result: first.data_type.clone() }
                    }
                    Domain::Decimal { factors, .. } => Domain::Decimal { factors, result: WIDE },
                    other => other,
                };
                let data_type = domain.result();
                (
                    Plan::Absolute { input: operand(first, &domain).into(), text: shown(expr), domain },
                    data_type,
                )
            }
            (Function::Lower, _) => recase(Case::Lower, first),
            (Function::Upper, _) => recase(Case::Upper, first),
            (Function::Contains, Some(second)) => search(Search::Contains, first, second),
            (Function::EndsWith, Some(second)) => search(Search::EndsWith, first, second),
            (Function::StartsWith, Some(second)) => search(Search::StartsWith, first, second),
            _ => (Plan::Length(first.plan.into()), DataType::Int64),
        };
        self.finish(plan, data_type, constant, &expr.span)
    }

    fn string(&self, argument: &Typed, function: &str) -> Result<(), ExprError> {
        let class = argument.class();
        if matches!(class, Class::Text | Class::Null) {
            return Ok(());
        }
        let problem = format!("{function} takes strings and this is {}", class.noun());
        Err(self.wrong(&argument.span, &problem, "use a column of strings, or a string in 'single quotes'"))
    }

    fn has_length(&self, argument: &Typed) -> Result<(), ExprError> {
        let class = argument.class();
        if matches!(class, Class::Text | Class::Bytes | Class::List | Class::Null) {
            return Ok(());
        }
        let problem = format!("length takes a string, a list or a binary and this is {}", class.noun());
        Err(self.wrong(&argument.span, &problem, "use another column"))
    }

    fn coalesce(&self, arguments: Vec<Typed>, expr: &Expr) -> Checked {
        let constant = arguments.iter().all(|argument| argument.literal.is_some());
        let arguments: Vec<_> = arguments.into_iter().filter(|argument| !argument.is_null()).collect();
        let Some(target) = self.common(&arguments)? else { return Ok(null(&expr.span)) };
        let items: Result<Vec<_>, _> =
            arguments.into_iter().map(|argument| self.item(argument, &target)).collect();
        self.finish(Plan::Coalesce(items?), target, constant, &expr.span)
    }

    /// The type of all items of a COALESCE; `None` without items.
    fn common(&self, items: &[Typed]) -> Result<Option<DataType>, ExprError> {
        let mut target: Option<&Typed> = None;
        let mut data_type: Option<DataType> = None;
        for item in items {
            let joined = match &data_type {
                None => Some(item.data_type.clone()),
                Some(so_far) => join(so_far, item, target),
            };
            let exact = joined.filter(|joined| !matches!(joined, DataType::Decimal256(..)));
            let Some(joined) = exact else {
                let problem = format!("coalesce got {} after another type", item.class().noun());
                return Err(self.wrong(&item.span, &problem, "give it values of one kind"));
            };
            data_type = Some(joined);
            target = Some(item);
        }
        Ok(data_type)
    }

    fn item(&self, item: Typed, target: &DataType) -> Result<Plan, ExprError> {
        let is_instant = Class::of(target) == Class::Instant;
        if let (true, Some(literal)) = (is_instant, &item.literal) {
            use super::fold::Folded;
            use super::tree::Comparison;
            return match fold::constant(Comparison::Equal, target, literal) {
                Folded::Test(_, value) => Ok(Plan::Constant(value)),
                Folded::Wrong(problem, way_out) => Err(self.wrong(&item.span, &problem, &way_out)),
                _ => Err(self.wrong(&item.span, &format!("the time is no value of {target}"), "round it")),
            };
        }
        let conversion = match target {
            DataType::Float64 => into_domain(&Domain::Float64, &item.data_type),
            DataType::Float32 => into_domain(&Domain::Float32, &item.data_type),
            _ => Conversion::to(&item.data_type, target),
        };
        Ok(item.converted(conversion))
    }
}

/// The type of `item` and of those before it.
fn join(so_far: &DataType, item: &Typed, previous: Option<&Typed>) -> Option<DataType> {
    let (l, r) = (Class::of(so_far), item.class());
    match (l, r) {
        _ if *so_far == item.data_type => Some(so_far.clone()),
        (Class::Text, Class::Text) => Some(DataType::LargeUtf8),
        (Class::Bytes, Class::Bytes) => Some(DataType::LargeBinary),
        (Class::Instant, Class::Text) if item.literal.is_some() => Some(so_far.clone()),
        (Class::Text, Class::Instant) if previous.is_some_and(|p| p.literal.is_some()) => {
            Some(item.data_type.clone())
        }
        _ => common_number(so_far, &item.data_type),
    }
}

fn null(span: &Range<usize>) -> Typed {
    let value = fold::natural(&Literal::Null);
    Typed {
        plan: Plan::Constant(value),
        data_type: DataType::Null,
        literal: Some(Literal::Null),
        span: span.clone(),
    }
}

/// One side in the type of the domain. Constants are converted exactly, by their digits.
fn operand(side: Typed, domain: &Domain) -> Plan {
    let literal = side.literal.as_ref();
    let exact = match domain {
        Domain::Float64 => literal.and_then(fold::float64).map(Literal::Float),
        _ => None,
    };
    if let Some(exact) = exact {
        return Plan::Constant(fold::natural(&exact));
    }
    let conversion = into_domain(domain, &side.data_type);
    side.converted(conversion)
}

fn recase(case: Case, input: Typed) -> (Plan, DataType) {
    (Plan::Recase { case, input: input.plan.into() }, input.data_type)
}

fn search(search: Search, left: Typed, right: Typed) -> (Plan, DataType) {
    let same = left.data_type == right.data_type;
    if let (Some(Literal::Text(text)), false) = (&right.literal, same)
        && let Some(array) = fold::string(&left.data_type, text)
    {
        let right = Plan::Constant(super::value::Value::scalar(array));
        let left = left.converted(Conversion::None);
        return (Plan::Search { search, left: left.into(), right: right.into() }, DataType::Boolean);
    }
    let to = if same { left.data_type.clone() } else { DataType::LargeUtf8 };
    let convert = |side: Typed| {
        let conversion = Conversion::to(&side.data_type, &to);
        side.converted(conversion)
    };
    (Plan::Search { search, left: convert(left).into(), right: convert(right).into() }, DataType::Boolean)
}

/// Digits before and after the point.
#[derive(Clone, Copy)]
struct Shape {
    whole: i32,
    scale: i32,
}

fn shape(class: Class) -> Shape {
    match class {
        Class::Decimal { precision, scale } => {
            Shape { whole: i32::from(precision) - i32::from(scale), scale: i32::from(scale) }
        }
        _ => Shape { whole: 20, scale: 0 },
    }
}

/// Whether both are integers of 128 bits or fewer.
fn is_wide(left: &Typed, right: &Typed) -> bool {
    [left, right].iter().all(|side| match side.class() {
        Class::Integer => true,
        Class::Decimal { scale, .. } => scale == 0,
        _ => false,
    })
}

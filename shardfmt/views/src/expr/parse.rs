//! From tokens to a tree, by recursive descent with the precedence of PostgreSQL and DuckDB.

use std::ops::Range;

use super::error::{ExprError, Place};
use super::lex::{self, Located, Token, syntax};
use super::tree::{Comparison, Expr, Function, Kind, Literal, Operator, is_keyword};
use super::{MAX_DEPTH, MAX_TEXT_BYTES};

/// The tree of `text`.
pub(super) fn parse(text: &str) -> Result<Expr, ExprError> {
    if text.len() > MAX_TEXT_BYTES {
        return Err(ExprError::TooLong { bytes: text.len(), limit: MAX_TEXT_BYTES });
    }
    let mut parser = Parser { text, tokens: lex::tokens(text)?, at: 0, open: 0 };
    let expr = parser.any()?;
    match parser.token() {
        Token::End => Ok(expr),
        Token::Symbol(")") => Err(parser.error("a parenthesis closes that was never opened", "remove it")),
        other => {
            let problem = format!("{} follows a complete expression", other.name());
            Err(parser
                .error(&problem, "join conditions with AND or OR, and write strings in 'single quotes'"))
        }
    }
}

struct Parser<'a> {
    text: &'a str,
    tokens: Vec<Located>,
    at: usize,
    /// Levels that the recursion is deep.
    open: usize,
}

type Parsed = Result<Expr, ExprError>;

impl Parser<'_> {
    /// An expression of any precedence, one level deeper.
    fn any(&mut self) -> Parsed {
        self.deeper(Self::or)
    }

    fn deeper(&mut self, parse: impl FnOnce(&mut Self) -> Parsed) -> Parsed {
        if self.open >= MAX_DEPTH {
            return Err(ExprError::TooDeep { limit: MAX_DEPTH, place: Place::new(self.text, self.span()) });
        }
        self.open += 1;
        let parsed = parse(self);
        self.open -= 1;
        parsed
    }

    fn or(&mut self) -> Parsed {
        let first = self.and()?;
        self.chain(first, "OR", Self::and, Kind::Or)
    }

    fn and(&mut self) -> Parsed {
        let first = self.not()?;
        self.chain(first, "AND", Self::not, Kind::And)
    }

    /// `first [keyword next]…` as one node, whose terms are no such nodes themselves.
    fn chain(
        &mut self,
        first: Expr,
        keyword: &str,
        next: impl Fn(&mut Self) -> Parsed,
        kind: impl Fn(Vec<Expr>) -> Kind,
    ) -> Parsed {
        if !self.word_is(keyword) {
            return Ok(first);
        }
        let start = first.span.start;
        let mut terms = Vec::new();
        flatten(&mut terms, first, keyword);
        while self.eat_word(keyword) {
            let term = next(self)?;
            flatten(&mut terms, term, keyword);
        }
        self.node(kind(terms), start)
    }

    fn not(&mut self) -> Parsed {
        let start = self.span().start;
        if self.eat_word("NOT") {
            let value = self.deeper(Self::not)?;
            return self.node(Kind::Not(value.into()), start);
        }
        self.is()
    }

    fn is(&mut self) -> Parsed {
        let mut value = self.comparison()?;
        let start = value.span.start;
        while self.eat_word("IS") {
            let negated = self.eat_word("NOT");
            if !self.eat_word("NULL") {
                return Err(
                    self.error("IS tests for NULL only", "write IS NULL or IS NOT NULL; else compare with =")
                );
            }
            value = self.node(Kind::IsNull { value: value.into(), negated }, start)?;
        }
        Ok(value)
    }

    fn comparison(&mut self) -> Parsed {
        let left = self.range()?;
        let Some(op) = self.eat_comparison() else { return Ok(left) };
        let start = left.span.start;
        let right = self.range()?;
        let compared = self.node(Kind::Compare(op, left.into(), right.into()), start)?;
        let at = self.at;
        if self.eat_comparison().is_some() {
            self.at = at;
            return Err(self.error("comparisons do not form chains", "write 1 < x AND x < 5"));
        }
        Ok(compared)
    }

    fn eat_comparison(&mut self) -> Option<Comparison> {
        let Token::Symbol(symbol) = self.token() else { return None };
        let op = match *symbol {
            "=" | "==" => Comparison::Equal,
            "<>" | "!=" => Comparison::NotEqual,
            "<" => Comparison::Less,
            "<=" => Comparison::LessEqual,
            ">" => Comparison::Greater,
            ">=" => Comparison::GreaterEqual,
            _ => return None,
        };
        self.at += 1;
        Some(op)
    }

    /// `value [NOT] IN (…)`, `BETWEEN`, `LIKE` and `ILIKE`.
    fn range(&mut self) -> Parsed {
        let value = self.sum()?;
        let start = value.span.start;
        let negated = self.eat_word("NOT");
        let value = Box::new(value);
        let kind = if self.eat_word("IN") {
            self.expect("(", "the list after IN is missing", "write x IN (1, 2, 3)")?;
            Kind::In { value, list: self.list("IN")?, negated }
        } else if self.eat_word("BETWEEN") {
            let low = self.sum()?.into();
            if !self.eat_word("AND") {
                return Err(self.error("BETWEEN lacks its AND", "write x BETWEEN 1 AND 5"));
            }
            Kind::Between { value, low, high: self.sum()?.into(), negated }
        } else if self.word_is("LIKE") || self.word_is("ILIKE") {
            let ignore_case = self.word_is("ILIKE");
            self.at += 1;
            let pattern = self.sum()?.into();
            let escape = if self.eat_word("ESCAPE") { Some(self.escape()?) } else { None };
            Kind::Like { value, pattern, escape, ignore_case, negated }
        } else if negated {
            return Err(
                self.error("NOT stands in an odd place", "write x NOT IN (…), or NOT before the condition")
            );
        } else {
            return Ok(*value);
        };
        self.node(kind, start)
    }

    fn escape(&mut self) -> Result<char, ExprError> {
        if let Token::Literal(Literal::Text(text)) = self.token() {
            let mut chars = text.chars();
            if let (Some(escape), None) = (chars.next(), chars.next()) {
                self.at += 1;
                return Ok(escape);
            }
        }
        Err(self.error("ESCAPE needs one character", "write ESCAPE '!' with the character in single quotes"))
    }

    fn sum(&mut self) -> Parsed {
        let mut left = self.product()?;
        loop {
            let op = match self.token() {
                Token::Symbol("+") => Operator::Add,
                Token::Symbol("-") => Operator::Subtract,
                _ => return Ok(left),
            };
            self.at += 1;
            let start = left.span.start;
            let right = self.product()?;
            left = self.node(Kind::Arithmetic(op, left.into(), right.into()), start)?;
        }
    }

    fn product(&mut self) -> Parsed {
        let mut left = self.sign()?;
        loop {
            let op = match self.token() {
                Token::Symbol("*") => Operator::Multiply,
                Token::Symbol("/") => Operator::Divide,
                Token::Symbol("//") => Operator::DivideWhole,
                Token::Symbol("%") => Operator::Remainder,
                _ => return Ok(left),
            };
            self.at += 1;
            let start = left.span.start;
            let right = self.sign()?;
            left = self.node(Kind::Arithmetic(op, left.into(), right.into()), start)?;
        }
    }

    fn sign(&mut self) -> Parsed {
        let start = self.span().start;
        if self.eat("+") {
            return self.deeper(Self::sign);
        }
        if !self.eat("-") {
            return self.primary();
        }
        // As many levels as in the canonical text, which has a minus behind another one in parentheses.
        let value = match self.token() {
            Token::Symbol("-") => self.deeper(|inner| inner.deeper(Self::sign))?,
            _ => self.deeper(Self::sign)?,
        };
        let negated = if let Kind::Literal(literal) = &value.kind { literal.negated() } else { None };
        self.node(negated.map_or_else(|| Kind::Negate(value.into()), Kind::Literal), start)
    }

    fn primary(&mut self) -> Parsed {
        let start = self.span().start;
        match self.token().clone() {
            Token::Literal(literal) => {
                self.at += 1;
                self.node(Kind::Literal(literal), start)
            }
            Token::Symbol("(") => {
                self.at += 1;
                let inner = self.any()?;
                self.expect(")", "a parenthesis is not closed", "write ) after the expression")?;
                Ok(inner)
            }
            Token::Quoted(name) => self.column(name, start),
            Token::Word(word) if is_keyword(&word) => self.constant(&word, start),
            Token::Word(word) => match self.tokens.get(self.at + 1) {
                Some((Token::Symbol("("), _)) => self.call(&word, start),
                _ => self.column(word, start),
            },
            Token::End => Err(self.error("the expression ends too early", "write a column or a value here")),
            other => {
                let problem = format!("{} stands where a value is expected", other.name());
                Err(self.error(&problem, "write a column, a number, a 'string' or a function"))
            }
        }
    }

    /// NULL, TRUE or FALSE.
    fn constant(&mut self, word: &str, start: usize) -> Parsed {
        let literal = match word.to_ascii_uppercase().as_str() {
            "NULL" => Literal::Null,
            "TRUE" => Literal::Bool(true),
            "FALSE" => Literal::Bool(false),
            keyword => {
                let problem = format!("the keyword {keyword} stands where a value is expected");
                let way_out = format!("write a column or a value; a column of this name is \"{word}\"");
                return Err(self.error(&problem, &way_out));
            }
        };
        self.at += 1;
        self.node(Kind::Literal(literal), start)
    }

    fn column(&mut self, first: String, start: usize) -> Parsed {
        self.at += 1;
        let mut path = vec![first];
        while self.eat(".") {
            match self.token().clone() {
                Token::Quoted(name) => path.push(name),
                Token::Word(name) if !is_keyword(&name) => path.push(name),
                _ => {
                    return Err(
                        self.error("a field's name is missing after the dot", "write a.b or a.\"b c\"")
                    );
                }
            }
            self.at += 1;
        }
        if path.len() > MAX_DEPTH {
            return Err(ExprError::TooDeep {
                limit: MAX_DEPTH,
                place: Place::new(self.text, self.span_from(start)),
            });
        }
        self.node(Kind::Column(path), start)
    }

    fn call(&mut self, word: &str, start: usize) -> Parsed {
        let Some(function) = Function::ALL.into_iter().find(|f| f.name().eq_ignore_ascii_case(word)) else {
            let names = Function::ALL.map(Function::name);
            let problem = format!("there is no function {word}");
            return Err(
                self.error(&problem, &super::nearest::way_out(&word.to_lowercase(), &names, "functions"))
            );
        };
        self.at += 2;
        let arguments = self.list(function.name())?;
        let right_count = function.arity().is_none_or(|arity| arity == arguments.len());
        if !right_count {
            let arity = function.arity().unwrap_or(1);
            let problem = format!("{} got {} arguments", function.name(), arguments.len());
            let way_out = if arity == 1 { "give it one".into() } else { format!("give it {arity}") };
            return Err(syntax(self.text, self.span_from(start), &problem, &way_out));
        }
        self.node(Kind::Call(function, arguments), start)
    }

    /// One or more expressions and the closing parenthesis.
    fn list(&mut self, of: &str) -> Result<Vec<Expr>, ExprError> {
        if matches!(self.token(), Token::Symbol(")")) {
            return Err(self.error(&format!("the list of {of} is empty"), "write at least one value"));
        }
        let mut items = vec![self.any()?];
        while self.eat(",") {
            items.push(self.any()?);
        }
        self.expect(
            ")",
            &format!("the list of {of} is not closed"),
            "write , between values and ) at the end",
        )?;
        Ok(items)
    }

    /// A node from `start` to the last token that was read.
    fn node(&self, kind: Kind, start: usize) -> Parsed {
        let span = self.span_from(start);
        let depth = 1 + kind.children().iter().map(|child| child.depth).max().unwrap_or(0);
        if depth > MAX_DEPTH {
            return Err(ExprError::TooDeep { limit: MAX_DEPTH, place: Place::new(self.text, span) });
        }
        Ok(Expr { kind, span, depth })
    }

    fn token(&self) -> &Token {
        self.tokens.get(self.at).map_or(&Token::End, |(token, _)| token)
    }

    fn span(&self) -> Range<usize> {
        self.tokens.get(self.at).map_or(self.text.len()..self.text.len(), |(_, span)| span.clone())
    }

    fn span_from(&self, start: usize) -> Range<usize> {
        let end =
            self.at.checked_sub(1).and_then(|at| self.tokens.get(at)).map_or(start, |(_, span)| span.end);
        start..end
    }

    fn word_is(&self, keyword: &str) -> bool {
        matches!(self.token(), Token::Word(word) if word.eq_ignore_ascii_case(keyword))
    }

    fn eat_word(&mut self, keyword: &str) -> bool {
        let found = self.word_is(keyword);
        self.at += usize::from(found);
        found
    }

    fn eat(&mut self, symbol: &str) -> bool {
        let found = matches!(self.token(), Token::Symbol(s) if *s == symbol);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, symbol: &str, problem: &str, way_out: &str) -> Result<(), ExprError> {
        if self.eat(symbol) { Ok(()) } else { Err(self.error(problem, way_out)) }
    }

    fn error(&self, problem: &str, way_out: &str) -> ExprError {
        syntax(self.text, self.span(), problem, way_out)
    }
}

/// Appends `term`, or its terms if it is the node that `keyword` makes.
fn flatten(terms: &mut Vec<Expr>, term: Expr, keyword: &str) {
    match term.kind {
        Kind::And(inner) if keyword == "AND" => terms.extend(inner),
        Kind::Or(inner) if keyword == "OR" => terms.extend(inner),
        kind => terms.push(Expr { kind, ..term }),
    }
}

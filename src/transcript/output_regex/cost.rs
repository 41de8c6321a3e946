//! An estimate of how long the character classes of a pattern take to translate. Pure.
//!
//! The compiler translates every class before it looks at its size limit, and folds case character
//! by character: a pattern of 4096 characters would keep it busy for seconds. Nothing else that it
//! does takes long within its limits.

use std::convert::Infallible;

use regex_syntax::ast::{
    self, Ast, ClassPerl, ClassPerlKind, ClassSetBinaryOp, ClassSetItem, ClassUnicode, Flag, Flags,
    FlagsItemKind, GroupKind, Visitor,
};
use regex_syntax::hir::{Class, HirKind, translate::Translator};

/// Highest estimate that is accepted, in microseconds.
const MAX_COST: u64 = 5000;

/// Characters that are folded in a microsecond.
const FOLDED_PER_MICROSECOND: u64 = 250;

/// All characters, and those of the Perl classes, roughly.
const CHARACTERS: u64 = 0x11_0000;
const DIGITS: u64 = 1000;
const SPACES: u64 = 25;
const WORDS: u64 = 150_000;

/// Whether the classes of a pattern take too long. `ignore_case`: the whole pattern ignores case.
pub(super) fn is_too_high(pattern: &str, ignore_case: bool) -> bool {
    // A pattern that does not parse is not translated either; the compiler says what is wrong.
    let Ok(parsed) = ast::parse::Parser::new().parse(pattern) else { return false };
    let Ok(cost) = ast::visit(&parsed, Cost { pattern, classes: 0, folding: 0, ignore_case });
    cost > MAX_COST
}

/// Adds up the classes, and looks for the flag.
struct Cost<'a> {
    pattern: &'a str,
    /// Microseconds for the classes as they are.
    classes: u64,
    /// Microseconds for folding them, if case is ignored anywhere.
    folding: u64,
    ignore_case: bool,
}

impl Cost<'_> {
    fn look_at(&mut self, flags: &Flags) {
        let ignores = FlagsItemKind::Flag(Flag::CaseInsensitive);
        self.ignore_case |= flags.items.iter().any(|item| item.kind == ignores);
    }

    fn fold(&mut self, characters: u64) {
        self.folding += characters / FOLDED_PER_MICROSECOND;
    }

    fn unicode(&mut self, class: &ClassUnicode) {
        self.classes += 6;
        // A negated class is folded before it is negated.
        let class = ClassUnicode { negated: false, ..class.clone() };
        let translated = Translator::new().translate(self.pattern, &Ast::class_unicode(class));
        if let Ok(hir) = translated
            && let HirKind::Class(Class::Unicode(class)) = hir.kind()
        {
            let width = |range: &regex_syntax::hir::ClassUnicodeRange| range.len() as u64;
            self.fold(class.iter().map(width).sum());
        }
    }
}

impl Visitor for Cost<'_> {
    type Output = u64;
    type Err = Infallible;

    fn finish(self) -> Result<u64, Infallible> {
        Ok(self.classes + if self.ignore_case { self.folding } else { 0 })
    }

    fn visit_pre(&mut self, ast: &Ast) -> Result<(), Infallible> {
        match ast {
            Ast::ClassUnicode(class) => self.unicode(class),
            // Closed under folding as it is.
            Ast::ClassPerl(_) => self.classes += 13,
            Ast::ClassBracketed(_) => self.classes += 2,
            Ast::Flags(set) => self.look_at(&set.flags),
            Ast::Group(group) => {
                if let GroupKind::NonCapturing(flags) = &group.kind {
                    self.look_at(flags);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn visit_class_set_item_pre(&mut self, item: &ClassSetItem) -> Result<(), Infallible> {
        match item {
            ClassSetItem::Unicode(class) => self.unicode(class),
            ClassSetItem::Perl(class) => {
                self.classes += 13;
                self.fold(width(class));
            }
            ClassSetItem::Bracketed(_) => self.classes += 2,
            ClassSetItem::Range(range) => {
                self.fold(u64::from(range.end.c as u32).saturating_sub(range.start.c as u64));
            }
            _ => {}
        }
        Ok(())
    }

    fn visit_class_set_binary_op_pre(&mut self, _: &ClassSetBinaryOp) -> Result<(), Infallible> {
        self.classes += 10;
        Ok(())
    }
}

fn width(class: &ClassPerl) -> u64 {
    let width = match class.kind {
        ClassPerlKind::Digit => DIGITS,
        ClassPerlKind::Space => SPACES,
        ClassPerlKind::Word => WORDS,
    };
    if class.negated { CHARACTERS - width } else { width }
}

#[cfg(test)]
mod tests {
    use super::is_too_high;

    #[test]
    fn folding_large_classes_is_too_costly() {
        let any = "[\0-\u{10ffff}]";
        assert!(!is_too_high(&any.repeat(400), false));
        assert!(!is_too_high(any, true));
        for pattern in
            [any.repeat(2), r"\p{Any}".repeat(2), r"[\s\S]".repeat(2), r"[^\D]".repeat(2)]
        {
            assert!(is_too_high(&pattern, true), "{pattern}");
            assert!(is_too_high(&format!("(?i){pattern}"), false), "{pattern}");
            assert!(is_too_high(&format!("a(?mi:b){pattern}"), false), "{pattern}");
        }
    }

    #[test]
    fn ordinary_classes_cost_little() {
        for pattern in [
            r"(?i)error[\s\S]*failed",
            r"(?i)(?P<level>warn|error) \[[\w.-]+\] (\S+) took \d+ ms",
            &format!("(?i){}", "[a-z0-9_]".repeat(400)),
            &r"\w\d".repeat(100),
            "no classes at all",
        ] {
            assert!(!is_too_high(pattern, false), "{pattern}");
        }
    }

    #[test]
    fn many_negated_classes_are_too_costly() {
        assert!(is_too_high(&r"\W".repeat(2000), false));
        assert!(is_too_high(&r"\PL".repeat(1300), false));
        assert!(is_too_high(&format!("(?i){}", r"\pL".repeat(40)), false));
        assert!(is_too_high(&format!("(?i)[{}]", r"\pL".repeat(40)), false));
    }
}

//! A bound on case folding. Pure.
//!
//! Under `(?i)` the compiler walks through every character of every class before it looks at any
//! limit: a pattern of 4096 characters would keep it busy for seconds. Nothing else that it does
//! takes long within its limits.

use std::convert::Infallible;

use regex_syntax::ast::{
    self, Ast, ClassSetBinaryOp, ClassSetItem, Flag, Flags, FlagsItemKind, GroupKind, Visitor,
};

/// Most character classes in a pattern that ignores case somewhere.
const MOST: usize = 32;

/// What is wrong with a pattern in which too many classes would be folded. `ignore_case`: it
/// ignores case from its beginning on.
pub(super) fn too_much(pattern: &str, ignore_case: bool) -> Option<String> {
    // One that does not parse is not folded either; what is wrong with it is told elsewhere.
    let parsed = ast::parse::Parser::new().parse(pattern).ok()?;
    let Ok((classes, ignores_case)) =
        ast::visit(&parsed, Count { classes: 0, ignores_case: ignore_case });
    (ignores_case && classes > MOST).then(|| {
        format!("has {classes} character classes, and ignores case: at most {MOST} with (?i)")
    })
}

/// Counts classes, and looks for the flag.
struct Count {
    classes: usize,
    ignores_case: bool,
}

impl Count {
    fn look_at(&mut self, flags: &Flags) {
        let ignores = FlagsItemKind::Flag(Flag::CaseInsensitive);
        self.ignores_case |= flags.items.iter().any(|item| item.kind == ignores);
    }
}

impl Visitor for Count {
    type Output = (usize, bool);
    type Err = Infallible;

    fn finish(self) -> Result<(usize, bool), Infallible> {
        Ok((self.classes, self.ignores_case))
    }

    fn visit_pre(&mut self, ast: &Ast) -> Result<(), Infallible> {
        match ast {
            Ast::ClassUnicode(_) | Ast::ClassBracketed(_) => self.classes += 1,
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
        if let ClassSetItem::Unicode(_) | ClassSetItem::Bracketed(_) = item {
            self.classes += 1;
        }
        Ok(())
    }

    fn visit_class_set_binary_op_pre(&mut self, _: &ClassSetBinaryOp) -> Result<(), Infallible> {
        // Both sides are folded.
        self.classes += 2;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    fn too_much(pattern: &str) -> Option<String> {
        super::too_much(pattern, false)
    }

    #[test]
    fn classes_are_counted_only_where_case_is_ignored() {
        let many = "[a-z]".repeat(40);
        assert_eq!(too_much(&many), None);
        assert!(super::too_much(&many, true).is_some());
        for pattern in [format!("(?i){many}"), format!("a(?mi:b){many}")] {
            assert!(too_much(&pattern).is_some(), "{pattern}");
        }
        assert_eq!(too_much(&format!("(?i){}", "[a-z]".repeat(32))), None);
        assert_eq!(too_much(&format!("(?i){}", r"\w\d".repeat(200))), None);
    }

    #[test]
    fn classes_within_classes_count() {
        let nested = format!("(?i){}a{}", "[b".repeat(40), "]".repeat(40));
        assert!(too_much(&nested).is_some());
        assert!(too_much(&format!("(?i)[{}]", r"\pL".repeat(40))).is_some());
        assert!(too_much(&format!("(?i){}", "[a&&b]".repeat(20))).is_some());
    }
}

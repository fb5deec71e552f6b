package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strings"
)

// planter rewrites one file, with a fault at each place that can have one.
type planter struct {
	name   string
	src    []byte
	fset   *token.FileSet
	faults *[]string
	// function that is being written, for the names of faults.
	function string
	seen     map[string]int
	// conditions are expressions that something depends on; removable are statements in a list.
	conditions map[ast.Expr]bool
	removable  map[ast.Stmt]bool
}

// mutate returns a file with its faults, which it adds to faults; the number of a fault is its
// place there, counted from 1.
func mutate(name string, src []byte, faults *[]string) (planted []byte, pkg string, err error) {
	p := &planter{
		name: name, src: src, fset: token.NewFileSet(), faults: faults, seen: map[string]int{},
		conditions: map[ast.Expr]bool{}, removable: map[ast.Stmt]bool{},
	}
	file, err := parser.ParseFile(p.fset, name, src, 0)
	if err != nil {
		return nil, "", err
	}
	var out strings.Builder
	from := 0
	for _, decl := range file.Decls {
		f, isFunc := decl.(*ast.FuncDecl)
		if !isFunc || f.Body == nil {
			continue
		}
		p.function = f.Name.Name
		out.Write(src[from:p.at(f.Body.Pos())])
		out.WriteString(p.render(f.Body))
		from = p.at(f.Body.End())
	}
	out.Write(src[from:])
	return []byte(out.String()), file.Name.Name, nil
}

func (p *planter) at(pos token.Pos) int { return p.fset.Position(pos).Offset }

func (p *planter) source(n ast.Node) string { return string(p.src[p.at(n.Pos()):p.at(n.End())]) }

// fault notes a fault and returns its number. Its name survives changes elsewhere in the file.
func (p *planter) fault(n ast.Node, what string) int {
	text := strings.Join(strings.Fields(p.source(n)), " ")
	if len(text) > 90 {
		text = text[:90] + "…"
	}
	name := fmt.Sprintf("%s %s: %s: %s", p.name, p.function, what, text)
	p.seen[name]++
	if again := p.seen[name]; again > 1 {
		name += fmt.Sprintf(" #%d", again)
	}
	*p.faults = append(*p.faults, name)
	return len(*p.faults)
}

// render returns the source of a node with faults in it.
func (p *planter) render(n ast.Node) string {
	p.mark(n)
	var out strings.Builder
	from := p.at(n.Pos())
	for _, child := range children(n) {
		out.Write(p.src[from:p.at(child.Pos())])
		out.WriteString(p.render(child))
		from = p.at(child.End())
	}
	out.Write(p.src[from:p.at(n.End())])
	text := out.String()
	switch n := n.(type) {
	case ast.Expr:
		return p.expression(n, text)
	case ast.Stmt:
		if p.removable[n] {
			return fmt.Sprintf("if !mutantOn(%d) { %s }", p.fault(n, "left out"), text)
		}
	}
	return text
}

// mark notes what the children of a node are to it.
func (p *planter) mark(n ast.Node) {
	list := func(statements []ast.Stmt) {
		for _, s := range statements {
			switch s := s.(type) {
			case *ast.ExprStmt, *ast.IncDecStmt, *ast.GoStmt, *ast.DeferStmt:
				p.removable[s] = true
			case *ast.AssignStmt:
				p.removable[s] = s.Tok != token.DEFINE && p.source(s.Lhs[0]) != "_"
			case *ast.BranchStmt:
				p.removable[s] = s.Tok == token.CONTINUE || s.Tok == token.BREAK
			}
		}
	}
	switch n := n.(type) {
	case *ast.BlockStmt:
		list(n.List)
	case *ast.CaseClause:
		list(n.Body)
	case *ast.IfStmt:
		p.conditions[n.Cond] = true
	case *ast.ForStmt:
		if n.Cond != nil {
			p.conditions[n.Cond] = true
		}
	case *ast.SwitchStmt:
		if n.Tag == nil {
			for _, clause := range n.Body.List {
				for _, e := range clause.(*ast.CaseClause).List {
					p.conditions[e] = true
				}
			}
		}
	case *ast.BinaryExpr:
		if n.Op == token.LAND || n.Op == token.LOR {
			p.conditions[n.X], p.conditions[n.Y] = true, true
		}
	}
}

// expression plants what can be wrong with an expression.
func (p *planter) expression(e ast.Expr, text string) string {
	if b, isBinary := e.(*ast.BinaryExpr); isBinary {
		switch b.Op {
		case token.LAND, token.LOR:
			other := map[token.Token]string{token.LAND: " || ", token.LOR: " && "}[b.Op]
			// The operands of the swapped one stand as in the source: their own faults are planted once.
			text = fmt.Sprintf("func() bool { if mutantOn(%d) { return (%s)%s(%s) }; return %s }()",
				p.fault(b, b.Op.String()+" swapped"), p.source(b.X), other, p.source(b.Y), text)
		case token.LSS, token.LEQ, token.GTR, token.GEQ:
			near := map[token.Token]string{token.LSS: "<=", token.LEQ: "<", token.GTR: ">=", token.GEQ: ">"}[b.Op]
			text = fmt.Sprintf("func() bool { if mutantOn(%d) { return %s %s %s }; return %s }()", p.fault(b, "by one"),
				p.source(b.X), near, p.source(b.Y), text)
		case token.EQL, token.NEQ:
			if !p.conditions[e] {
				return fmt.Sprintf("mutantNot(%d, %s)", p.fault(e, "negated"), text)
			}
		case token.ADD, token.SUB, token.MUL:
			return fmt.Sprintf("mutantFirst(%d, %s, %s)", p.fault(b, "only the first"), p.source(b.X), text)
		}
	}
	if id, isIdent := e.(*ast.Ident); isIdent && (id.Name == "true" || id.Name == "false") {
		return fmt.Sprintf("mutantNot(%d, %s)", p.fault(e, "negated"), text)
	}
	if p.conditions[e] {
		if _, isParen := e.(*ast.ParenExpr); !isParen {
			return fmt.Sprintf("mutantNot(%d, %s)", p.fault(e, "negated"), text)
		}
	}
	return text
}

// children returns the nodes directly below one, in the order of the source.
func children(n ast.Node) []ast.Node {
	var list []ast.Node
	ast.Inspect(n, func(child ast.Node) bool {
		if child == nil || child == n {
			return child == n
		}
		list = append(list, child)
		return false
	})
	slices.SortFunc(list, func(a, b ast.Node) int { return int(a.Pos() - b.Pos()) })
	return list
}

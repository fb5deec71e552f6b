package walls

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"strings"
)

// unseen are the files that may open something without a look at what it is, with the reason.
var unseen = map[string]string{
	"services/evictor/internal/oomwatch/watch.go":     "the kernel's log is a device",
	"services/internal/regularfile/regularfile.go":    "it has looked",
	"services/internal/unixgrpc/listen.go":            "the lock is in a folder that only its owner may enter",
	"services/microlet/internal/lockfile/lockfile.go": "an operator names the file",
}

// OpensUnseen returns each place below services that opens with O_NONBLOCK. That is how a file is opened that may be a
// FIFO, but it opens a device too. Package regularfile looks first.
func OpensUnseen(workspace fs.FS) (found []string, err error) {
	err = fs.WalkDir(workspace, "services", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") ||
			unseen[path] != "" {
			return err
		}
		text, err := fs.ReadFile(workspace, path)
		if err != nil {
			return err
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, text, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok && s.Sel.Name == "O_NONBLOCK" {
				found = append(found, fmt.Sprintf("%s opens before it looks: use regularfile", files.Position(s.Pos())))
			}
			return true
		})
		return nil
	})
	return found, err
}

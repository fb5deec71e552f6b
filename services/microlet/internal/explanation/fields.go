package explanation

import (
	"fmt"
	"regexp"
	"strings"
)

// index is one of a list in the path of a field.
var index = regexp.MustCompile(`\[\d+\]`)

// FieldShape is the path of a field without the indices of lists: alike for all containers and pods.
func FieldShape(path string) string { return index.ReplaceAllString(path, "") }

// Few lists the first of many names.
func Few(names []string) string {
	const shown = 5
	if len(names) <= shown {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:shown], ", "), len(names)-shown)
}

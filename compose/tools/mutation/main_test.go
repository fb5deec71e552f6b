package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// source has a place for each kind of fault.
const source = `package small

func Grade(points, bonus int, absent bool) (grade int) {
	if absent || points == 0 {
		return 0
	}
	grade = points
	if points < 10 && bonus > 1 {
		grade = points + bonus
	}
	return grade
}

func Known() bool { return true }
`

// planted are the faults of it, in the order in which they are reported.
var planted = []string{
	"Grade: negated: absent",
	"Grade: negated: points == 0",
	"Grade: || swapped: absent || points == 0",
	"Grade: negated: absent || points == 0",
	"Grade: left out: grade = points",
	"Grade: by one: points < 10",
	"Grade: negated: points < 10",
	"Grade: by one: bonus > 1",
	"Grade: negated: bonus > 1",
	"Grade: && swapped: points < 10 && bonus > 1",
	"Grade: negated: points < 10 && bonus > 1",
	"Grade: only the first: points + bonus",
	"Grade: left out: grade = points + bonus",
	"Known: negated: true",
}

// What a test of it may demand: all notices each fault, and most does not notice that the bonus is compared by one.
const (
	most   = `Grade(5, 3, false) == 8 && Grade(5, 3, true) == 0 && Grade(0, 3, false) == 0 && Grade(10, 3, false) == 10 && Known()`
	all    = most + ` && Grade(5, 1, false) == 5`
	blind  = `Grade(5, 3, false) >= 0 && Grade(5, 3, true) >= 0`
	broken = `Grade(5, 3, false) == 9`
	byOne  = "small.go Grade: by one: bonus > 1"
)

// judge has the tool judge a test that demands a condition.
func judge(t *testing.T, demands, explained string) (said string, err error) {
	t.Helper()
	folder := t.TempDir()
	files := map[string]string{
		"go.mod": "module small\n\ngo 1.26.0\n", "small.go": source, "explained": explained,
		"small_test.go": fmt.Sprintf("package small\n\nimport \"testing\"\n\nfunc TestIt(t *testing.T) {\n\tif !(%s) "+
			"{\n\t\tt.Error(\"wrong\")\n\t}\n}\n", demands),
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("GOWORK", "off")
	var out bytes.Buffer
	err = run(t.Context(), &out, folder, filepath.Join(folder, "explained"), time.Minute, 2)
	_, said, _ = strings.Cut(out.String(), "\n") // behind the line that counts the faults
	return said, err
}

func TestFaultsThatAreNoticedAndNot(t *testing.T) {
	n := len(planted)
	each := ""
	for _, fault := range planted {
		each += "SURVIVED   small.go " + fault + "\n"
	}
	for name, c := range map[string]struct{ demands, explained, says, fails string }{
		"a test that notices all": {all, "", fmt.Sprintf("noticed %d of %d (100.0 %%), 0 explained, 0 open\n", n, n), ""},
		"a test that notices none": {
			blind, "", each + fmt.Sprintf("noticed 0 of %d (0.0 %%), 0 explained, %d open\n", n, n),
			fmt.Sprintf("%d faults were not noticed: write a test for each, or explain it", n),
		},
		"a test that notices all but one": {
			most, "",
			"SURVIVED   " + byOne + "\n" + fmt.Sprintf("noticed %d of %d (92.9 %%), 0 explained, 1 open\n", n-1, n),
			"1 faults were not noticed: write a test for each, or explain it",
		},
		"the one is explained": {
			most, "# why\n" + byOne + "\tfor a reason\n",
			"explained  " + byOne + " (for a reason)\n" +
				fmt.Sprintf("noticed %d of %d (92.9 %%), 1 explained, 0 open\n", n-1, n), "",
		},
		"the one is explained and noticed": {
			all, byOne + "\tfor a reason\n",
			"noticed after all, take it off the list: " + byOne + "\n" +
				fmt.Sprintf("noticed %d of %d (100.0 %%), 0 explained, 0 open\n", n, n), "",
		},
		"an explanation without a reason":    {all, byOne + "\n", "", "has no reason"},
		"a test that fails for itself":       {broken, "", "", "the tests fail without any fault"},
		"a test that cannot be built at all": {"Ungraded()", "", "", "build the tests"},
	} {
		t.Run(name, func(t *testing.T) {
			said, err := judge(t, c.demands, c.explained)
			if said != c.says {
				t.Errorf("it says\n%s\nwant\n%s", said, c.says)
			}
			if c.fails == "" && err != nil || c.fails != "" && (err == nil || !strings.Contains(err.Error(), c.fails)) {
				t.Errorf("it ends with %v, want %q", err, c.fails)
			}
		})
	}
}

package diskusage

import (
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	if RunChild() { // the children are of this binary
		return
	}
	os.Exit(m.Run())
}

/* The program of the image nonewprivs: it is setuid root, and says whether
 * that gave it root's rights. */
#include <stdio.h>
#include <unistd.h>

int main(void)
{
	return printf("Effective uid: %d\n", (int)geteuid()) < 0;
}

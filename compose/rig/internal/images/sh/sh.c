/* The shell of the image busybox. Debian's busybox has a shell that does not
 * pass on environment variables whose names it could not use itself, and pods
 * may have such. For them bash is the shell; else what tests compare is what
 * busybox's shell says. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

static int usable(const char *name)
{
	static const char start[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_";
	size_t length;

	if (!*name || !strchr(start, *name))
		return 0;
	length = strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_0123456789");
	return name[length] == '=';
}

int main(int argc, char **argv)
{
	const char *shell = "/bin/busybox";
	char **variable;

	(void)argc;
	for (variable = environ; *variable; variable++)
		if (!usable(*variable))
			shell = "/bin/bash";
	/* Both decide by the name by which they are called that they are a shell. */
	execv(shell, argv);
	perror(shell);
	return 127;
}
